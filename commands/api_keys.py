"""`millrace keys api list|new|revoke`: who may call, as which tenant, for what and until when. A secret is shown only once."""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from typing import Annotated, Any, cast

import typer

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings, NotFound
from contracts.keys import SCOPES, NewKey, Role, Scope, list_keys, make_key, revoke_keys
from runtime.settings import load_settings

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_COLUMNS = ("id", "role", "tenant", "scopes", "state", "expires", "made", "name")
_NEVER = "-"
app = typer.Typer(help="Keys of apps and operators: who may call, for what and until when.", no_args_is_help=True)


@app.command()
def new(
    *,
    home: HomeOption = DEFAULT_HOME,
    role: Annotated[str, typer.Option(help="app or operator.")] = "app",
    tenant: Annotated[str, typer.Option(help="Tenant whose traffic this key carries.")] = "default",
    scopes: Annotated[
        str,
        typer.Option(help="Some of inference,feedback,operator:read,operator:write. Default: all scopes of the role."),
    ] = "",
    expires: Annotated[str, typer.Option(help="30d, 12h, or a date. Default: never.")] = "",
    name: Annotated[str, typer.Option(help="A note on what the key is for.")] = "",
) -> None:
    """Make a key and print it once, alone on standard output."""
    wanted = NewKey(
        role=cast("Role", role),
        tenant=tenant,
        scopes=read_scopes(scopes),
        expires_at=read_expiry(expires, time.time()),
        name=name,
    )
    wanted.check(time.time())
    with load_settings(home).transaction() as connection:
        print(make_key(connection, wanted))


@app.command("list")
def print_keys(home: HomeOption = DEFAULT_HOME) -> None:
    """List every key: id, role, tenant, scopes, state and expiry. Secrets are never shown."""
    with load_settings(home).snapshot() as connection:
        lines = [_COLUMNS, *(_line(row, time.time()) for row in list_keys(connection))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


@app.command()
def revoke(
    keys: Annotated[list[str], typer.Argument(help="Ids, as `millrace keys api list` prints them, or whole keys.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Refuse keys from now on, within two seconds, and end the dashboard sessions that were opened with them.

    If one of the keys is unknown, none is revoked.
    """
    # Of a whole key, mr-ROLE-ID-SECRET, the id.
    ids = [found[1] if (found := re.match(r"mr-[^-]*-([^-]*)", text.strip())) else text.strip() for text in keys]
    with load_settings(home).transaction() as connection:
        known = {row.id: row for row in list_keys(connection)}
        if missing := sorted(set(ids) - known.keys()):
            raise NotFound(f"no key has the id {', '.join(missing)}; millrace keys api list shows them")
        revoked = revoke_keys(connection, ids, time.time())
    for key_id in dict.fromkeys(ids):
        print(f"{key_id} is revoked{'' if key_id in revoked else ' already'}: refused everywhere within 2 s")
    file = home / "operator.key"
    own = file.read_text(errors="replace") if revoked and file.exists() else ""
    if any(f"-{key_id}-" in own for key_id in revoked):
        lost = "It was the key of this home, so `millrace up` needs a new one"
        print(f"{lost}. Make it with: millrace keys --role operator --home {home} > {file}", file=sys.stderr)


def read_scopes(text: str) -> frozenset[Scope] | None:
    """Scopes from names separated by commas or spaces. None: all scopes of the role."""
    if not text:
        return None
    names = set(filter(None, re.split("[, ]+", text)))
    if unknown := sorted(names - set(SCOPES)):
        raise InvalidSettings(f"--scopes {', '.join(unknown)}: there are {', '.join(SCOPES)}")
    return frozenset(cast("set[Scope]", names))


def read_expiry(text: str, now: float) -> float | None:
    """UTC epoch seconds of `30d` from now, or of a date or time (UTC unless it has a time zone). Empty: None, never."""
    if not text:
        return None
    if found := re.fullmatch(r"([0-9]{1,6})([smhdw])", text):
        return now + int(found[1]) * _UNITS[found[2]]
    try:
        moment = dt.datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidSettings(
            f"--expires takes a duration such as 12h, 30d or 8w, or a date such as 2027-01-31, not {text!r}"
        ) from error


def _line(row: Any, now: float) -> tuple[str, ...]:
    state = "revoked" if row.revoked_at is not None else "good"
    if state == "good" and row.expires_at is not None and row.expires_at <= now:
        state = "expired"
    scopes = row.scopes.replace(" ", ",")
    return (row.id, row.role, row.tenant, scopes, state, _moment(row.expires_at), _moment(row.created_at), row.name)


def _moment(at: float | None) -> str:
    return _NEVER if at is None else f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%dT%H:%MZ}"
