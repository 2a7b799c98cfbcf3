"""Default passwords: allowed for servers on this machine, refused for all others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from contracts.errors import InvalidSettings
from runtime.addresses import is_loopback
from runtime.secret_values import KAFKA_PASSWORD, REDIS_PASSWORD, secret_value
from runtime.settings import Settings

WELL_KNOWN = frozenset(
    ("admin", "changeme", "default", "guest", "millrace", "minioadmin", "password", "postgres", "redis", "root", "secret", "test")
)  # fmt: skip


def check_passwords(settings: Settings, environment: Mapping[str, str]) -> None:
    """Refuse a well-known password for a server on another machine. Raises InvalidSettings: names the server."""
    for server, host, password in _logins(settings, environment):
        if password in WELL_KNOWN and not is_loopback(host):
            raise InvalidSettings(
                f"the password of {server} at {host} is a well-known default: set a password of your own "
                "(`deploy/env` writes an .env file with random ones for docker compose)"
            )


def _logins(settings: Settings, environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for server, url, default in (
        ("the database", settings.database_url, environment.get("PGPASSWORD", "")),
        ("Redis", settings.redis, secret_value(REDIS_PASSWORD, environment) or ""),
    ):
        if url is not None:
            parts = urlsplit(url)
            yield server, parts.hostname or "", unquote(parts.password or "") or default
    if settings.kafka_mechanism is not None:
        for host, _ in settings.kafka_servers:
            yield "Kafka", host, secret_value(KAFKA_PASSWORD, environment) or ""
    if settings.weights_url is not None and (endpoint := environment.get("AWS_ENDPOINT_URL")):
        yield "the object store", urlsplit(endpoint).hostname or "", environment.get("AWS_SECRET_ACCESS_KEY", "")
