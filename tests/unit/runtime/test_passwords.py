from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from runtime.addresses import is_loopback
from runtime.passwords import check_passwords
from runtime.settings import Settings
from tests.each_case import each_case


def settings(**values: str) -> Settings:
    return Settings(home=Path("h"), run="r", policy="p", base="b", tasks=(Path("t.toml"),), **values)


@pytest.mark.parametrize(
    ("values", "environment", "says"),
    [
        ({"database_url": "postgresql+psycopg://millrace:millrace@postgres/millrace"}, {}, "the database at postgres"),
        ({"database_url": "postgresql+psycopg://u:p%61ssword@10.0.0.7:5432/m"}, {}, "the database at 10.0.0.7"),
        ({"database_url": "postgresql+psycopg://u@db/m"}, {"PGPASSWORD": "postgres"}, "the database at db"),
        ({"redis": "redis://:redis@cache:6379/0"}, {}, "Redis at cache"),
        (
            {"weights_url": "s3://b/p"},
            {"AWS_ENDPOINT_URL": "http://s3:5000", "AWS_SECRET_ACCESS_KEY": "minioadmin"},
            "the object store at s3",
        ),
    ],
)
def test_a_default_password_is_refused_elsewhere(
    values: dict[str, str], environment: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidSettings, match=says) as refused:
        check_passwords(settings(**values), environment)
    assert "deploy/env" in refused.value.message


@each_case(
    ("values", "environment"),
    [
        ({}, {"PGPASSWORD": "postgres"}),
        ({"database_url": "postgresql+psycopg://millrace:millrace@127.0.0.1:5432/millrace"}, {}),
        ({"database_url": "postgresql+psycopg://millrace:millrace@/millrace"}, {}),
        ({"database_url": "postgresql+psycopg://millrace@postgres/millrace"}, {}),
        ({"database_url": "postgresql+psycopg://millrace:3f0c9be21@postgres/millrace"}, {}),
        ({"redis": "redis://cache:6379/0"}, {}),
        (
            {"weights_url": "s3://b/p"},
            {"AWS_ENDPOINT_URL": "http://localhost:5000", "AWS_SECRET_ACCESS_KEY": "millrace"},
        ),
        ({"weights_url": "s3://b/p"}, {"AWS_SECRET_ACCESS_KEY": "3f0c9be21"}),
    ],
)
def test_on_this_machine_or_with_another_one_it_goes_on(values: dict[str, str], environment: dict[str, str]) -> None:
    check_passwords(settings(**values), environment)


def test_what_cannot_be_reached_from_elsewhere() -> None:
    assert all(map(is_loopback, ("", "localhost", "127.0.0.1", "127.9.9.9", "::1", "/var/run/postgresql")))
    assert not any(map(is_loopback, ("10.0.0.1", "0.0.0.0", "::", "localhost.example.org", "db")))  # noqa: S104 no bind
