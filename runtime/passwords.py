"""Default passwords: allowed for servers on this machine, refused for all others. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from contracts.errors import InvalidSettings
from runtime.settings import Settings

WELL_KNOWN = frozenset(
    ("admin", "changeme", "default", "guest", "millrace", "minioadmin", "password", "postgres", "redis", "root", "secret", "test")
)  # fmt: skip


def check_passwords(settings: Settings, environment: Mapping[str, str]) -> None:
    """Refuse to use a well-known password for a server on another machine.

    Raises:
        InvalidSettings: names the server, and what to do.
    """
    for server, host, password in _logins(settings, environment):
        if password in WELL_KNOWN and not is_loopback(host):
            raise InvalidSettings(
                f"the password of {server} at {host} is a well-known default: set a password of your own "
                "(`deploy/env` writes an .env file with random ones for docker compose)"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; an empty one or a path is a Unix socket."""
    if not host or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _logins(settings: Settings, environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Server, host and password of each server in the settings."""
    for server, url, default in (
        ("the database", settings.database_url, environment.get("PGPASSWORD", "")),
        ("Redis", settings.redis, ""),
    ):
        if url is not None:
            parts = urlsplit(url)
            yield server, parts.hostname or "", unquote(parts.password or "") or default
    if settings.weights_url is not None and (endpoint := environment.get("AWS_ENDPOINT_URL")):
        yield "the object store", urlsplit(endpoint).hostname or "", environment.get("AWS_SECRET_ACCESS_KEY", "")
