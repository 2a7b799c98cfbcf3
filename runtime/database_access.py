"""Why PostgreSQL does not let this client in (address, libpq's message), and what to do. Asks the server for a refused certificate."""

from __future__ import annotations

import struct
from pathlib import Path

import sqlalchemy

from runtime.certificates import refusal_of

_SECONDS = 3.0
ASK_FOR_TLS = struct.pack(">ii", 8, 80877103)
"""SSLRequest of PostgreSQL's protocol; the server answers with one byte."""
_CERTIFICATE = ("certificate verify failed", "does not match host name", "sslrootcert", "root certificate")
_REMEDIES = (
    ("does not support SSL", "PostgreSQL speaks no TLS: set ssl = on there, or change sslmode in database_url"),
    ("password authentication failed", "check user and password: in database_url, or in PGPASSWORD or PGPASSFILE"),
    ("no password supplied", "give the password in PGPASSWORD or PGPASSFILE"),
    (
        "no pg_hba.conf entry",
        "allow this user, database and address in pg_hba.conf; it may demand TLS (sslmode=verify-full)",
    ),
    ("certificate required", "PostgreSQL wants a certificate of this client: sslcert= and sslkey= in database_url"),
    ("private key file", "set sslkey= in database_url to the key of sslcert=, readable by its owner only"),
)


def refusal_in_words(url: str, says: str) -> str:
    """What is wrong and what to do; empty if the server only is away."""
    if any(words in says for words in _CERTIFICATE):
        return _certificate_in_words(url)
    return next((remedy for words, remedy in _REMEDIES if words in says), "")


def _certificate_in_words(url: str) -> str:
    parts = sqlalchemy.make_url(url)
    named = str(parts.query.get("sslrootcert", ""))
    authority = Path(named) if named and named != "system" else None
    if authority is not None and not authority.is_file():
        return f"sslrootcert in database_url: {authority} cannot be read; put the authority of PostgreSQL's certificate there"
    found = refusal_of(
        parts.host or "",
        parts.port or 5432,
        _SECONDS,
        authority=authority,
        setting="sslrootcert of database_url",
        first=ASK_FOR_TLS,
    )
    return found[1] if found else "check sslmode and sslrootcert in database_url"
