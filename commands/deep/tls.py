"""Certificates and encryption of a home: which certificates end soon, and which servers are reached without TLS.

In: paths and addresses in the settings and the environment. Out: findings. Waits for: the disk, and each server for a few seconds. Whether
a certificate is trusted is for the client that uses it: `kafka`, `database`, `redis` and `weights` say.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

from cryptography import x509

from commands.findings import Finding, missing, note
from runtime.addresses import is_loopback
from runtime.certificates import certificate_of, days_left
from runtime.database_access import ASK_FOR_TLS
from runtime.settings import Settings, read_home_settings

_SOON_DAYS = 30
_DAY_SECONDS = 86_400.0
_LONGEST_CHAIN = 8
_ENDINGS = (".pem", ".crt", ".cer")
_ADDRESSES = "ssl", "cert"
_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "PGSSLROOTCERT", "PGSSLCERT")
_BEGINS = b"-----BEGIN CERTIFICATE-----"
_REMEDY = "renew it where it was issued, put the new one there, and restart the processes that read it"
_SERVER_SECONDS = 3.0
_CHECKED = {"verify-ca", "verify-full"}
_MOMENT = "%Y-%m-%d %H:%M UTC"


def certificate_findings(settings: Settings, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """One finding per file with certificates, by the one that ends first; one if there is none."""
    given = (environment[name] for name in _VARIABLES if environment.get(name))
    named = dict.fromkeys([*_paths_in(read_home_settings(settings.home) or {}), *given])
    found = [item for path in named if (item := _file(Path(path), time.time())) is not None]
    yield from found or [Finding("certificate", True, False, "the settings name no file of certificates")]


def _paths_in(value: Any) -> Iterator[str]:
    """Every text below a value that can be the path of a certificate, also in an address (`sslrootcert=`, `ssl_ca_certs=`)."""
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _paths_in(inner)
    elif isinstance(value, str):
        if "://" in value:
            query = parse_qsl(urlsplit(value).query)
            yield from (text for name, text in query if name.startswith(_ADDRESSES) and "/" in text)
        elif value.endswith(_ENDINGS):
            yield value


def _file(path: Path, now: float) -> Finding | None:
    """None: a file of another kind, such as a key alone."""
    name = "certificate"
    try:
        content = path.read_bytes()
        if _BEGINS not in content:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old authorities in a machine's bundle have odd serial numbers
            certificates = x509.load_pem_x509_certificates(content)
    except OSError as error:
        return missing(name, f"{path} cannot be read ({error.strerror}): put it there, or correct the settings")
    except ValueError as error:
        return missing(name, f"{path} is damaged ({error}): {_REMEDY}")
    # A chain breaks with its first certificate that ends; a bundle of authorities is good while one of them is.
    pick = max if len(certificates) > _LONGEST_CHAIN else min
    first = pick(certificates, key=lambda item: item.not_valid_after_utc)
    who = f"{path}: {first.subject.rfc4514_string() or 'a certificate'}"
    days = (first.not_valid_after_utc.timestamp() - now) / _DAY_SECONDS
    if first.not_valid_before_utc.timestamp() > now:
        says = f"{who} is valid only from {first.not_valid_before_utc:{_MOMENT}}: check this machine's clock"
        return missing(name, says)
    return _until(name, who, f"{first.not_valid_after_utc:{_MOMENT}}", days, _REMEDY)


def _until(name: str, who: str, until: str, days: float, remedy: str) -> Finding:
    if days <= 0:
        return missing(name, f"{who} expired {until}: {remedy}")
    says = f"{who} expires {until}, in {days:.0f} days"
    return Finding(name, True, False, says) if days > _SOON_DAYS else note(name, f"{says}: {remedy}")


class _Server(NamedTuple):
    """A server, whether it is reached with TLS and checked, and what makes it so."""

    name: str
    host: str
    port: int
    is_safe: bool
    remedy: str
    first: bytes = b""


def encryption_findings(settings: Settings, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """One finding per server that is reached with TLS, or should be; none for one that cannot be reached."""
    for server in _servers(settings, environment):
        place = f"{server.name} at {server.host}:{server.port}"
        if server.is_safe:
            try:
                shown = certificate_of(server.host, server.port, _SERVER_SECONDS, server.first)
            except (OSError, ValueError):
                continue  # the finding of that server tells why it is not used
            until = f"{shown.not_valid_after_utc:{_MOMENT}}"
            yield _until("tls", f"{place}: its certificate", until, days_left(shown), "renew it there")
        elif not is_loopback(server.host):
            says = f"{place}: what is sent may be read on the way, and another server may answer: {server.remedy}"
            yield note("tls", f"{says}; see docs/operating.md, TLS and sign-in")


def _servers(settings: Settings, environment: Mapping[str, str]) -> Iterator[_Server]:
    for host, port in settings.kafka_servers:
        yield _Server("Kafka", host, port, settings.kafka_tls, "set kafka_tls = true")
    if settings.database_url is not None and not settings.database_url.startswith("sqlite"):
        parts = urlsplit(settings.database_url)
        mode = parse_qs(parts.query).get("sslmode", [environment.get("PGSSLMODE", "")])[0]
        remedy = "add ?sslmode=verify-full&sslrootcert=FILE to database_url"
        yield _Server("PostgreSQL", parts.hostname or "", parts.port or 5432, mode in _CHECKED, remedy, ASK_FOR_TLS)
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    for name, url, scheme, port in (
        ("Redis", settings.redis, "rediss", 6379),
        ("the object store", endpoint if settings.weights_url is not None else None, "https", 443),
        ("the token endpoint", settings.kafka_token_url, "https", 443),
    ):
        if url:
            parts = urlsplit(url)
            yield _Server(name, parts.hostname or "", parts.port or port, parts.scheme == scheme, f"use {scheme}://")
