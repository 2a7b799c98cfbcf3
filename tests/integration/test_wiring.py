"""The servers that run here against the images of docker-compose.yml."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
import redis
import sqlalchemy

from tests.yaml_files import read_yaml
from weights.stores.opening import open_store_at

pytestmark = pytest.mark.services

COMPOSE = Path(__file__).parent.parent.parent / "docker-compose.yml"


SERVICES = read_yaml(COMPOSE)["services"]


def version_of(service: str) -> str:
    image: str = SERVICES[service]["image"]
    return image.partition(":")[2].partition("-")[0]


def address(name: str) -> str:
    if (found := os.environ.get(name)) is None:
        pytest.skip(f"no {name}: run make test-services")
    return found


def test_postgres_is_of_the_image_s_major_version() -> None:
    url = sqlalchemy.make_url(address("MILLRACE_DATABASE")).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        assert str(connection.info.server_version // 10_000) == version_of("postgres")


def test_redis_is_of_the_image_s_version() -> None:
    with redis.Redis.from_url(address("MILLRACE_REDIS")) as client:
        running = str(client.info("server")["redis_version"])
    assert running.rpartition(".")[0] == version_of("redis")


def test_the_health_check_of_the_object_store_makes_the_bucket() -> None:
    bucket = f"wiring-{uuid.uuid4().hex[:12]}"
    *_, code = SERVICES["s3"]["healthcheck"]["test"]
    code = code.replace("http://127.0.0.1:5000/millrace", f"{address('AWS_ENDPOINT_URL')}/{bucket}")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 our own file
    assert open_store_at(f"s3://{bucket}/weights").versions("anything") == []
