"""Certificates in files that the settings or the environment name: which have expired, or soon will.

In: paths, also those in addresses (`sslrootcert=`, `ssl_ca_certs=`). Out: one finding per file. Waits for: the disk.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cryptography import x509

from commands.findings import Finding
from runtime.settings import Settings, read_home_settings

SOON_DAYS = 30
_DAY_SECONDS = 86_400.0
_LONGEST_CHAIN = 8
_ENDINGS = (".pem", ".crt", ".cer")
_ADDRESSES = "ssl", "cert"
_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "PGSSLROOTCERT", "PGSSLCERT")
_BEGINS = b"-----BEGIN CERTIFICATE-----"
_REMEDY = "renew it where it was issued, put the new one there, and restart the processes that read it"


def certificate_findings(
    settings: Settings, environment: Mapping[str, str] = os.environ, now: float | None = None
) -> Iterator[Finding]:
    """One finding per file with certificates, by the one that ends first; one if there is none."""
    named = dict.fromkeys(
        [
            *_paths_in(read_home_settings(settings.home) or {}),
            *(environment[name] for name in _VARIABLES if environment.get(name)),
        ]
    )
    found = [item for path in named if (item := _finding(Path(path), time.time() if now is None else now)) is not None]
    yield from found or [Finding("certificate", True, False, "the settings name no file of certificates")]


def _paths_in(value: Any) -> Iterator[str]:
    """Every text below a value that can be the path of a certificate."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _paths_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths_in(inner)
    elif isinstance(value, str):
        if "://" in value:
            query = parse_qsl(urlsplit(value).query)
            yield from (text for name, text in query if name.startswith(_ADDRESSES) and "/" in text)
        elif value.endswith(_ENDINGS):
            yield value


def _finding(path: Path, now: float) -> Finding | None:
    """None: a file of another kind, such as a key alone."""
    name = "certificate"
    try:
        content = path.read_bytes()
    except OSError as error:
        return Finding(
            name, False, True, f"{path} cannot be read ({error.strerror}): put it there, or correct the settings"
        )
    if _BEGINS not in content:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old authorities in a machine's bundle have odd serial numbers
            certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        return Finding(name, False, True, f"{path} is damaged ({error}): {_REMEDY}")
    # A chain breaks with its first certificate that ends; a bundle of authorities is good while one of them is.
    pick = max if len(certificates) > _LONGEST_CHAIN else min
    first = pick(certificates, key=lambda item: item.not_valid_after_utc)
    who = f"{path}: {first.subject.rfc4514_string() or 'a certificate'}"
    days = (first.not_valid_after_utc.timestamp() - now) / _DAY_SECONDS
    until = f"{first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if first.not_valid_before_utc.timestamp() > now:
        says = f"{who} is valid only from {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: check this machine's clock"
        return Finding(name, False, True, says)
    if days <= 0:
        return Finding(name, False, True, f"{who} expired {until}: {_REMEDY}")
    return Finding(
        name,
        days > SOON_DAYS,
        False,
        f"{who} expires {until}, in {days:.0f} days" + ("" if days > SOON_DAYS else f": {_REMEDY}"),
    )
