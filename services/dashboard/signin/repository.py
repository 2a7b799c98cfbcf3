"""Sessions and one-time links in the database. It holds only hashes, so nobody can sign in with what they read there.

All replicas share them, and a restart signs nobody out. A session has the current rights of its key, and ends with the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update

from contracts.errors import Unauthorized, Unavailable
from contracts.keys import Caller, Scope, find_key
from contracts.tables import dashboard_session
from runtime.database import Database

COOKIE = "millrace_session"
IDLE_SECONDS = 3600.0
LONGEST_SECONDS = 12 * 3600.0
"""The longest life of a session, and of a link that nobody used."""
NOTE_SECONDS = 60.0
"""The last use of a session is stored at most this often."""
MAX_SESSIONS = 1000
LINK = "link"
"""The role of a row that is no session yet: a link that nobody used."""

Role = Literal["viewer", "app", "operator"]
_VIEWER: frozenset[Scope] = frozenset(("operator:read",))
_COLUMNS = dashboard_session.c


class Session(NamedTuple):
    """One signed-in browser. `csrf` is a secret that only our own pages contain. Times are UTC epoch seconds."""

    role: Role
    name: str
    csrf: str
    started_at: float
    used_at: float
    scopes: frozenset[Scope]
    tenant: str | None
    """The tenant whose numbers it may see; None: all tenants' numbers, and the words of people and models."""

    @property
    def decides(self) -> bool:
        """Whether it may change what is served."""
        return "operator:write" in self.scopes


class Sessions:
    """Session ids to sessions."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def start(self, caller: Caller) -> str:
        """A fresh session id for the holder of a key. Beyond `MAX_SESSIONS` the longest unused session ends. Raises Unavailable."""
        with self._database.transaction() as connection:
            return self._add(connection, caller.role, f"{caller.role} {caller.key_id}", caller.key_id)

    def make_link(self) -> str:
        """A token that `enter` takes once, within `LONGEST_SECONDS`. Other links and sessions stay. Raises Unavailable."""
        with self._database.transaction() as connection:
            return self._add(connection, LINK, "one-time link")

    def enter(self, token: str) -> str:
        """Use up a token of `make_link`. Returns a fresh session id that may only look.

        Raises Unauthorized: the token was used, has expired, or is not of this home; Unavailable: the database cannot be written; the token
        still works.
        """
        is_young = _COLUMNS.started_at >= self._clock() - LONGEST_SECONDS
        here = (_COLUMNS.id_hash == _digest(token), _COLUMNS.role == LINK, is_young)
        with self._database.transaction() as connection:
            # Of several who ask at once, one deletes the row.
            if connection.execute(delete(dashboard_session).where(*here)).rowcount != 1:
                hours = f"{LONGEST_SECONDS / 3600:.0f} hours"
                raise Unauthorized(f"this link was used already, is older than {hours}, or belongs to another home")
            return self._add(connection, "viewer", "one-time link")

    def _add(self, connection: Connection, role: str, name: str, key_id: str | None = None) -> str:
        """Insert a session or a link. Expired ones are deleted, and the longest unused beyond `MAX_SESSIONS`."""
        now, secret, table = self._clock(), secrets.token_urlsafe(32), dashboard_session
        is_idle = and_(_COLUMNS.role != LINK, _COLUMNS.used_at < now - IDLE_SECONDS)
        connection.execute(delete(table).where(or_(is_idle, _COLUMNS.started_at < now - LONGEST_SECONDS)))
        surplus = connection.execute(select(func.count()).select_from(table)).scalar_one() + 1 - MAX_SESSIONS
        if surplus > 0:
            oldest = select(_COLUMNS.id_hash).order_by(_COLUMNS.used_at, _COLUMNS.started_at).limit(surplus)
            connection.execute(delete(table).where(_COLUMNS.id_hash.in_(oldest)))
        row = {
            "id_hash": _digest(secret),
            "role": role,
            "name": name,
            "key_id": key_id,
            "started_at": now,
            "used_at": now,
        }
        connection.execute(insert(table).values(csrf=secrets.token_urlsafe(32), **row))
        return secret

    def find(self, session_id: str | None) -> Session:
        """The session of a cookie. Raises Unauthorized if it or its key has ended or is not known, Unavailable."""
        if not session_id:
            raise Unauthorized("sign in with a Millrace key; `millrace up` printed it")
        id_hash, now, holder = _digest(session_id), self._clock(), None
        mine = select(dashboard_session).where(_COLUMNS.id_hash == id_hash, _COLUMNS.role != LINK)
        with self._database.snapshot() as connection:
            row = connection.execute(mine).one_or_none()
            if row is not None and row.role != "viewer":
                holder = find_key(connection, row.key_id or "", now)
        if (
            row is None
            or not hmac.compare_digest(row.id_hash, id_hash)
            or now - row.used_at > IDLE_SECONDS
            or now - row.started_at > LONGEST_SECONDS
        ):
            raise Unauthorized("the session has ended; sign in with a Millrace key")
        if now - row.used_at > NOTE_SECONDS:
            # Times never go back, whichever replica writes last.
            older = update(dashboard_session).where(_COLUMNS.id_hash == id_hash, _COLUMNS.used_at < now)
            # A session goes on while the database takes no writes: that is when operators need the pages.
            with suppress(Unavailable), self._database.transaction() as connection:
                connection.execute(older.values(used_at=now))
        scopes = holder.scopes if holder is not None else _VIEWER
        tenant = holder.tenant if holder is not None and "operator:read" not in scopes else None
        return Session(row.role, row.name, row.csrf, row.started_at, row.used_at, scopes, tenant)

    def end(self, session_id: str | None) -> None:
        """End a session, on every replica."""
        if session_id:
            with self._database.transaction() as connection:
                connection.execute(delete(dashboard_session).where(_COLUMNS.id_hash == _digest(session_id)))


def _digest(session_id: str) -> str:
    # 256 random bits: a plain hash is enough.
    return hashlib.sha256(session_id.encode()).hexdigest()
