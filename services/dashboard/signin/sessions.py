"""Sessions and one-time links in the database, and checks that a request comes from our own pages.

All replicas share them, and a restart signs nobody out. A session has the current rights of its key, and ends with the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import Connection

from contracts.errors import Forbidden, Unauthorized, Unavailable
from contracts.keys import Caller, Scope, find_key
from runtime.database import Database
from services.dashboard.signin import repository

COOKIE = "millrace_session"
IDLE_SECONDS = 3600.0
LONGEST_SECONDS = 12 * 3600.0
"""The longest life of a session, and of a link that nobody used."""
NOTE_SECONDS = 60.0
"""The last use of a session is stored at most this often."""
MAX_SESSIONS = 1000

Role = Literal["viewer", "app", "operator"]
_VIEWER: frozenset[Scope] = frozenset(("operator:read",))


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
            return self._add(connection, repository.LINK, "one-time link")

    def enter(self, token: str) -> str:
        """Use up a token of `make_link`. Returns a fresh session id that may only look.

        Raises:
            Unauthorized: the token was used, has expired, or is not of this home.
            Unavailable: the database cannot be written; the token still works.
        """
        with self._database.transaction() as connection:
            if not repository.spend_link(connection, _digest(token), self._clock() - LONGEST_SECONDS):
                raise Unauthorized(
                    f"this link was used already, is older than {LONGEST_SECONDS / 3600:.0f} hours, or belongs to another home"
                )
            return self._add(connection, "viewer", "one-time link")

    def _add(self, connection: Connection, role: str, name: str, key_id: str | None = None) -> str:
        now, secret = self._clock(), secrets.token_urlsafe(32)
        times = {"started_at": now, "used_at": now}
        row = {"role": role, "name": name, "key_id": key_id, "csrf": secrets.token_urlsafe(32), **times}
        repository.add(
            connection,
            {"id_hash": _digest(secret), **row},
            used_before=now - IDLE_SECONDS,
            started_before=now - LONGEST_SECONDS,
            most=MAX_SESSIONS,
        )
        return secret

    def find(self, session_id: str | None) -> Session:
        """The session of a cookie.

        Raises:
            Unauthorized: there is no such session, or it or its key has expired, or the key was revoked.
            Unavailable: the database cannot be read.
        """
        if not session_id:
            raise Unauthorized("sign in with a Millrace key; `millrace up` printed it")
        id_hash, now = _digest(session_id), self._clock()
        with self._database.snapshot() as connection:
            row = repository.find(connection, id_hash)
            holder = None
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
            # A session goes on while the database takes no writes: that is when operators need the pages.
            with suppress(Unavailable), self._database.transaction() as connection:
                repository.note_use(connection, id_hash, now)
        scopes = holder.scopes if holder is not None else _VIEWER
        tenant = holder.tenant if holder is not None and "operator:read" not in scopes else None
        return Session(row.role, row.name, row.csrf, row.started_at, row.used_at, scopes, tenant)

    def end(self, session_id: str | None) -> None:
        """End a session, on every replica."""
        if session_id:
            with self._database.transaction() as connection:
                repository.remove(connection, _digest(session_id))


def check_same_origin(headers: Mapping[str, str]) -> None:
    """Refuse a change that a page of another site made the browser send.

    Raises:
        Forbidden: `Sec-Fetch-Site` or `Origin` names another site, or a browser sent neither.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    ours = origin is not None and urlsplit(origin).netloc == headers.get("host")
    if site not in {None, "same-origin"} or not (ours or (origin is None and site == "same-origin")):
        raise Forbidden("this request did not come from the dashboard's own page")


def check_csrf(session: Session, sent: str | None) -> None:
    """Refuse a change without the secret of our own pages.

    Raises:
        Forbidden: it is missing or wrong.
    """
    if not hmac.compare_digest(session.csrf.encode(), (sent or "").encode()):
        raise Forbidden("the page is out of date; reload it and try again")


def _digest(session_id: str) -> str:
    # 256 random bits: a plain hash is enough.
    return hashlib.sha256(session_id.encode()).hexdigest()
