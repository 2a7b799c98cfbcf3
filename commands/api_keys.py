"""`millrace keys api list | new | revoke`: who may call, as whom, for what and until when. A secret is shown once, when it is made."""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from pathlib import Path
from typing import Any, cast

from contracts.errors import InvalidSettings, NotFound
from contracts.keys import SCOPES, NewKey, Role, Scope, list_keys, make_key, revoke_keys
from runtime.database import Database
from runtime.settings import load_settings

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_COLUMNS = ("id", "role", "tenant", "scopes", "state", "expires", "made", "name")
_NEVER = "-"


def new(home: Path, *, role: str, tenant: str, scopes: str, expires: str, name: str) -> None:
    """Make a key and print it, alone on standard output."""
    wanted = NewKey(
        role=cast("Role", role),
        tenant=tenant,
        scopes=read_scopes(scopes),
        expires_at=read_expiry(expires, time.time()),
        name=name,
    )
    wanted.check(time.time())
    with _database(home).transaction() as connection:
        print(make_key(connection, wanted))


def print_keys(home: Path) -> None:
    """A line for each key, without its secret."""
    with _database(home).snapshot() as connection:
        rows = list_keys(connection)
    lines = [_COLUMNS, *(_line(row, time.time()) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(_COLUMNS))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def revoke(home: Path, keys: list[str]) -> None:
    """Refuse keys from now on. `keys`: ids, or whole keys.

    Raises:
        NotFound: one of them is not known; none was revoked.
    """
    ids = [_id_of(text) for text in keys]
    with _database(home).transaction() as connection:
        known = {row.id: row for row in list_keys(connection)}
        if missing := sorted(set(ids) - known.keys()):
            raise NotFound(f"no key has the id {', '.join(missing)}; millrace keys api list shows them")
        revoked = revoke_keys(connection, ids, time.time())
    for key_id in dict.fromkeys(ids):
        print(f"{key_id} is revoked{'' if key_id in revoked else ' already'}: refused everywhere within 2 s")
    if any(f"-{key_id}-" in _operator_key(home) for key_id in revoked):
        print(
            f"It was the key of this home: `millrace up` needs another, made with: millrace keys --role operator --home {home} "
            f"> {home / 'operator.key'}",
            file=sys.stderr,
        )


def read_scopes(text: str) -> frozenset[Scope] | None:
    """Names apart by commas or spaces; None: all of the role."""
    if not text:
        return None
    names = [name for name in re.split("[, ]+", text) if name]
    if unknown := sorted(set(names) - set(SCOPES)):
        raise InvalidSettings(f"--scopes {', '.join(unknown)}: there are {', '.join(SCOPES)}")
    return frozenset(cast("list[Scope]", names))


def read_expiry(text: str, now: float) -> float | None:
    """`30d` from now, a date or a time (UTC unless it says otherwise), as UTC epoch seconds; empty: None, never."""
    if not text:
        return None
    if found := re.fullmatch(r"([0-9]{1,6})([smhdw])", text):
        return now + int(found[1]) * _UNITS[found[2]]
    try:
        moment = dt.datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidSettings(
            f"--expires takes a time from now such as 12h, 30d or 8w, or a date such as 2027-01-31, not {text!r}"
        ) from error


def _line(row: Any, now: float) -> tuple[str, ...]:
    state = "revoked" if row.revoked_at is not None else "good"
    if state == "good" and row.expires_at is not None and row.expires_at <= now:
        state = "expired"
    scopes = row.scopes.replace(" ", ",")
    return (row.id, row.role, row.tenant, scopes, state, _moment(row.expires_at), _moment(row.created_at), row.name)


def _moment(at: float | None) -> str:
    return _NEVER if at is None else f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%dT%H:%MZ}"


def _id_of(text: str) -> str:
    """The third part of a key, or the text."""
    parts = text.strip().split("-")
    return parts[2] if parts[0] == "mr" and len(parts) > 2 else text.strip()  # noqa: PLR2004 mr-role-id-secret


def _operator_key(home: Path) -> str:
    file = home / "operator.key"
    return file.read_text(errors="replace") if file.exists() else ""


def _database(home: Path) -> Database:
    return load_settings(home).database()
