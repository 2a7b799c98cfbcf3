"""Connections to the servers of a home: is each encrypted, and how long is the server's certificate still good?

In: addresses. Out: findings; none for a server that is on this machine and not encrypted, or that cannot be reached. Waits for: each server,
a few seconds. Whether a certificate is trusted is for the client that uses it: `kafka`, `database`, `redis` and `weights` say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from commands.deep.certificates import SOON_DAYS
from commands.findings import Finding
from runtime.addresses import is_loopback
from runtime.certificates import certificate_of, days_left
from runtime.database_access import ASK_FOR_TLS
from runtime.settings import Settings

_SECONDS = 3.0
_CHECKED = {"verify-ca", "verify-full"}


class _Server(NamedTuple):
    """A server, whether it is reached with TLS and checked, and what makes it so."""

    name: str
    host: str
    port: int
    is_safe: bool
    remedy: str
    first: bytes = b""


def encryption_findings(settings: Settings, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """One finding per server that is reached with TLS, or should be."""
    for server in _servers(settings, environment):
        place = f"{server.name} at {server.host}:{server.port}"
        if server.is_safe:
            yield from _certificate(server, place)
        elif not is_loopback(server.host):
            says = f"{place}: what is sent may be read on the way, and another server may answer: {server.remedy}"
            yield Finding("tls", False, False, f"{says}; see docs/operating.md, TLS and sign-in")


def _servers(settings: Settings, environment: Mapping[str, str]) -> Iterator[_Server]:
    for host, port in settings.kafka_servers:
        yield _Server("Kafka", host, port, settings.kafka_tls, "set kafka_tls = true")
    if settings.database_url is not None and not settings.database_url.startswith("sqlite"):
        parts = urlsplit(settings.database_url)
        mode = parse_qs(parts.query).get("sslmode", [environment.get("PGSSLMODE", "")])[0]
        remedy = "add ?sslmode=verify-full&sslrootcert=FILE to database_url"
        yield _Server("PostgreSQL", parts.hostname or "", parts.port or 5432, mode in _CHECKED, remedy, ASK_FOR_TLS)
    for name, url, scheme, port in (
        ("Redis", settings.redis, "rediss", 6379),
        ("the object store", _endpoint(settings, environment), "https", 443),
        ("the token endpoint", settings.kafka_token_url, "https", 443),
    ):
        if url:
            parts = urlsplit(url)
            yield _Server(name, parts.hostname or "", parts.port or port, parts.scheme == scheme, f"use {scheme}://")


def _endpoint(settings: Settings, environment: Mapping[str, str]) -> str | None:
    if settings.weights_url is None:
        return None
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")


def _certificate(server: _Server, place: str) -> Iterator[Finding]:
    try:
        shown = certificate_of(server.host, server.port, _SECONDS, server.first)
    except (OSError, ValueError):
        return  # the finding of that server tells why it is not used
    days = days_left(shown)
    until = f"{shown.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if days <= 0:
        yield Finding("tls", False, True, f"{place}: its certificate expired {until}: renew it there")
    else:
        soon = "" if days > SOON_DAYS else ": renew it there"
        yield Finding(
            "tls", days > SOON_DAYS, False, f"{place}: its certificate expires {until}, in {days:.0f} days{soon}"
        )
