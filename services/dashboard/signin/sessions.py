"""Who looks at the pages: sessions in the database, one-time tokens, and whether a request comes from our own page.

Every replica sees the same sessions, and a restart signs nobody out. A session may do what its key may do now, and ends with it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from contracts.errors import Forbidden, Unauthorized, Unavailable
from contracts.keys import Caller, Scope, find_key
from runtime.database import Database
from services.dashboard.signin import repository

COOKIE = "millrace_session"
TOKEN_FILE = "dashboard.token"  # noqa: S105 the name of a file
IDLE_SECONDS = 3600.0
LONGEST_SECONDS = 12 * 3600.0
NOTE_SECONDS = 60.0
"""Use is written down at most this often."""
MAX_SESSIONS = 1000

Role = Literal["viewer", "app", "operator"]
_VIEWER: frozenset[Scope] = frozenset(("operator:read",))


class Session(NamedTuple):
    """One signed-in browser. `csrf` is known to our pages only. Times are UTC epoch seconds."""

    role: Role
    name: str
    csrf: str
    started_at: float
    used_at: float
    scopes: frozenset[Scope]
    tenant: str | None
    """Whose numbers it may see; None: everybody's, with what people and models said."""

    @property
    def decides(self) -> bool:
        """May change what is served."""
        return "operator:write" in self.scopes


class Sessions:
    """Session ids to sessions."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    @contextmanager
    def starting(self, caller: Caller | None) -> Iterator[str]:
        """A fresh session id, good once the block ends without an error. The longest unused gives way to it.

        Args:
            caller: whose key opens it; None: the link that this home printed, whose holder may only look.

        Raises:
            Unavailable: the database cannot be written.
        """
        now, session_id = self._clock(), secrets.token_urlsafe(32)
        who = {"role": "viewer", "name": "one-time link", "key_id": None}
        if caller is not None:
            who = {"role": caller.role, "name": f"{caller.role} {caller.key_id}", "key_id": caller.key_id}
        row = {**who, "csrf": secrets.token_urlsafe(32), "started_at": now, "used_at": now}
        with self._database.transaction() as connection:
            repository.remove_expired(connection, used_before=now - IDLE_SECONDS, started_before=now - LONGEST_SECONDS)
            repository.remove_oldest(connection, MAX_SESSIONS - 1)
            repository.add(connection, {"id_hash": _digest(session_id), **row})
            yield session_id

    def start(self, caller: Caller | None) -> str:
        """The same without a condition."""
        with self.starting(caller) as session_id:
            return session_id

    def find(self, session_id: str | None) -> Session:
        """The session behind a cookie.

        Raises:
            Unauthorized: there is none, or it has expired, or its key has, or was revoked.
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
            # Whoever may look may look on while the database takes no writes: that is when looking matters.
            with suppress(Unavailable), self._database.transaction() as connection:
                repository.note_use(connection, id_hash, now)
        scopes = holder.scopes if holder is not None else _VIEWER
        tenant = holder.tenant if holder is not None and "operator:read" not in scopes else None
        return Session(row.role, row.name, row.csrf, row.started_at, row.used_at, scopes, tenant)

    def end(self, session_id: str | None) -> None:
        """Forget a session, on every replica."""
        if session_id:
            with self._database.transaction() as connection:
                repository.remove(connection, _digest(session_id))


def spend_token(home: Path, token: str) -> None:
    """Exchange the token that whoever started the process left in the home; it works once.

    Of many replicas on one home, one succeeds: the file is taken by renaming it, which only one can.

    Raises:
        Unauthorized: it is not that token, or it was used.
    """
    path, taken = home / TOKEN_FILE, home / f"{TOKEN_FILE}.{secrets.token_hex(8)}"
    try:
        # Looked at first, so that a wrong guess takes nothing away.
        if _holds(path, token):
            path.rename(taken)
            if _holds(taken, token):
                taken.unlink()
                return
            # A fresh token was left between the two: it stays for whoever has it.
            with suppress(FileExistsError):
                os.link(taken, path)
            taken.unlink()
    except FileNotFoundError:
        pass
    raise Unauthorized("this link was used already, or is not of this home; sign in with a key")


def check_same_origin(headers: Mapping[str, str]) -> None:
    """Refuse a change that another site's page asked a browser for.

    Raises:
        Forbidden: `Sec-Fetch-Site` or `Origin` names another site, or a browser sent neither.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    ours = origin is not None and urlsplit(origin).netloc == headers.get("host")
    if site not in {None, "same-origin"} or not (ours or (origin is None and site == "same-origin")):
        raise Forbidden("this request did not come from the dashboard's own page")


def check_csrf(session: Session, sent: str | None) -> None:
    """Refuse a change without the secret that stands in our page.

    Raises:
        Forbidden: it is missing or another.
    """
    if not hmac.compare_digest(session.csrf.encode(), (sent or "").encode()):
        raise Forbidden("the page is out of date; reload it and try again")


def _holds(path: Path, token: str) -> bool:
    expected = path.read_bytes().strip()
    return bool(expected) and hmac.compare_digest(expected, token.encode())


def _digest(session_id: str) -> str:
    # 256 random bits: a plain hash is enough.
    return hashlib.sha256(session_id.encode()).hexdigest()
