"""Settings about Kafka that cannot work together are refused by name; secrets come from variables or files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands.deep.tls import encryption_findings
from commands.options import chosen_settings
from contracts.errors import InvalidSettings
from runtime.kafka_settings import KafkaSettings
from runtime.log.kafka.log import Found, Wanted, difference
from runtime.passwords import check_passwords
from runtime.secret_values import KAFKA_PASSWORD, secret_value
from runtime.settings import Settings, make_section
from tests.each_case import each_case

BASE: dict[str, Any] = {"home": Path("h"), "run": "r", "policy": "p", "base": "b", "tasks": (Path("t"),)}
SCRAM = {"kafka": "kafka:9093", "kafka_tls": True, "kafka_mechanism": "SCRAM-SHA-512", "kafka_user": "u"}
TOKEN = {"kafka": "kafka:9093", "kafka_tls": True, "kafka_mechanism": "OAUTHBEARER"}


@each_case(
    "values",
    [
        {},
        {"kafka": "a:1, [::1]:2"},
        SCRAM,
        SCRAM | {"kafka_tls": False, "kafka": "127.0.0.1:1,localhost:2"},
        TOKEN | {"kafka_token_file": "t"},
        TOKEN | {"kafka_token_url": "https://idp/token", "kafka_user": "client"},
        {"kafka_tls": True, "kafka_certificate": "c", "kafka_key": "k"},
        {"kafka_replication": 3, "kafka_min_insync": 3},
        {"kafka_min_insync": 2},
    ],
)
def test_what_fits_together_is_taken(values: dict[str, Any]) -> None:
    taken = KafkaSettings.model_validate(values).model_dump(mode="json", exclude_unset=True)
    assert taken == values


@each_case(
    ("values", "says"),
    [
        ({"kafka": "kafka"}, "'kafka' is not host:port"),
        ({"kafka": ","}, "kafka names no broker"),
        ({"kafka_replication": 2, "kafka_min_insync": 3}, "kafka_min_insync = 3 is more than kafka_replication = 2"),
        ({"kafka_replication": 0}, "kafka_replication"),
        ({"kafka_ca": "c"}, "kafka_ca and kafka_certificate are for TLS: set kafka_tls = true"),
        ({"kafka_tls": True, "kafka_key": "k"}, "belong together: set both"),
        ({"kafka_user": "u"}, "kafka_user is for a sign-in: set kafka_mechanism"),
        ({"kafka_mechanism": "GSSAPI"}, "kafka_mechanism: Input should be 'PLAIN', 'SCRAM-SHA-256'"),
        (SCRAM | {"kafka_tls": False}, "without TLS shows its secret to the network: set kafka_tls = true"),
        (SCRAM | {"kafka_user": None}, "SCRAM-SHA-512 needs kafka_user"),
        (TOKEN, "needs its token from kafka_token_url or from kafka_token_file"),
        (TOKEN | {"kafka_token_url": "https://i", "kafka_token_file": "t"}, "set one of them"),
        (TOKEN | {"kafka_token_url": "https://idp/token"}, "kafka_token_url needs kafka_user"),
        (TOKEN | {"kafka_token_url": "http://idp/token", "kafka_user": "u"}, "begins with https://"),
    ],
)
def test_what_does_not_is_refused_by_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        make_section("[millrace]", Settings, **BASE, **values)
    assert says in refused.value.message


@pytest.mark.parametrize("number", [3, 257])
def test_a_number_of_partitions_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(InvalidSettings, match=r"\[millrace\] partitions: "):
        make_section("[millrace]", Settings, **BASE, partitions=number)


def test_a_secret_is_in_a_variable_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    assert secret_value(KAFKA_PASSWORD, {}) is None
    assert secret_value(KAFKA_PASSWORD, {KAFKA_PASSWORD: "given"}) == "given"
    in_file = {f"{KAFKA_PASSWORD}_FILE": str(file)}
    assert secret_value(KAFKA_PASSWORD, in_file) == "from the file"
    with pytest.raises(InvalidSettings, match="both set"):
        secret_value(KAFKA_PASSWORD, {KAFKA_PASSWORD: "given", **in_file})
    file.write_text("\n")
    with pytest.raises(InvalidSettings, match="is empty"):
        secret_value(KAFKA_PASSWORD, in_file)
    file.unlink()
    with pytest.raises(InvalidSettings, match="cannot be read"):
        secret_value(KAFKA_PASSWORD, in_file)


def test_a_well_known_password_of_kafka_is_refused_elsewhere_only() -> None:
    settings = Settings(**BASE, **SCRAM)
    with pytest.raises(InvalidSettings, match="password of Kafka at kafka is a well-known default"):
        check_passwords(settings, {KAFKA_PASSWORD: "changeme"})
    check_passwords(settings.model_copy(update={"kafka": "127.0.0.1:1"}), {KAFKA_PASSWORD: "changeme"})


@pytest.mark.parametrize(
    ("found", "wanted", "says"),
    [
        (Found(4, 1, 1), Wanted(4, None, None), ""),
        (Found(12, 3, 2), Wanted(12, 3, 2), ""),
        (Found(12, 5, 4), Wanted(12, 3, 2), ""),
        (Found(4, 3, 2), Wanted(12, 3, 2), "has 4 partitions, not 12"),
        (Found(13, 3, 2), Wanted(12, 3, 2), "has 13 partitions, not 12"),
        (Found(12, 2, 2), Wanted(12, 3, 2), "has 2 replicas, and kafka_replication is 3"),
        (Found(12, 3, 1), Wanted(12, 3, 2), "has min.insync.replicas = 1, and kafka_min_insync is 2"),
    ],
)
def test_a_topic_is_compared_with_the_settings(found: Found, wanted: Wanted, says: str) -> None:
    told = difference("p.r.signals", found, wanted)
    assert says in told
    assert bool(says) == bool(told)


def test_settings_without_an_option_are_set_by_name() -> None:
    assert chosen_settings(["partitions=12", "kafka_ca=/a=b"]) == {"partitions": "12", "kafka_ca": "/a=b"}
    assert chosen_settings(None) == {}
    for given, says in (
        ("partitions", "takes NAME=VALUE"),
        ("partition=3", "not 'partition=3'"),
        ("kafka=k:1", "option of its own"),
    ):
        with pytest.raises(InvalidSettings, match=says):
            chosen_settings([given])


def test_what_is_sent_unencrypted_to_another_machine_is_told() -> None:
    settings = Settings(
        **BASE,
        kafka="kafka.invalid:9092,127.0.0.1:1",
        database_url="postgresql+psycopg://u@db.invalid/m?sslmode=require",
        redis="redis://127.0.0.1:1/0",
        weights_url="s3://b/w",
    )
    found = [item.says for item in encryption_findings(settings, {"AWS_ENDPOINT_URL": "http://s3.invalid"})]
    assert [says.split(":")[0] for says in found] == [
        "Kafka at kafka.invalid",
        "PostgreSQL at db.invalid",
        "the object store at s3.invalid",
    ]
    assert "set kafka_tls = true" in found[0]
    assert "sslmode=verify-full" in found[1]
