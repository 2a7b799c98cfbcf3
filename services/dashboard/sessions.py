"""Who looks at the page: sessions in memory, one-time tokens, and whether a request comes from our own page."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from contracts.errors import Forbidden, Unauthorized

COOKIE = "millrace_session"
TOKEN_FILE = "dashboard.token"  # noqa: S105 the name of a file
IDLE_SECONDS = 3600.0
LONGEST_SECONDS = 12 * 3600.0
MAX_SESSIONS = 1000

Role = Literal["viewer", "app", "operator"]


@dataclass
class Session:
    """One signed-in browser. `csrf` is known to our page only. Times are those of the monotonic clock."""

    role: Role
    name: str
    csrf: str
    started: float
    used: float


class Sessions:
    """Session ids to sessions; a restart of the process signs everybody out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, Session] = {}

    def start(self, role: Role, name: str) -> str:
        """A fresh session id; the oldest session gives way when there are too many."""
        now = self._clock()
        if len(self._held) >= MAX_SESSIONS:
            del self._held[next(iter(self._held))]
        session_id = secrets.token_urlsafe(32)
        self._held[session_id] = Session(role, name, secrets.token_urlsafe(32), now, now)
        return session_id

    def find(self, session_id: str | None) -> Session:
        """The session behind a cookie.

        Raises:
            Unauthorized: there is none, or it has expired.
        """
        session, now = self._held.get(session_id or ""), self._clock()
        if session is None or now - session.used > IDLE_SECONDS or now - session.started > LONGEST_SECONDS:
            self._held.pop(session_id or "", None)
            raise Unauthorized("sign in with a Millrace key; `millrace up` printed it")
        session.used = now
        return session

    def end(self, session_id: str | None) -> None:
        """Forget a session."""
        self._held.pop(session_id or "", None)


def spend_token(home: Path, token: str) -> None:
    """Exchange the token that whoever started the process left in the home; it works once.

    Raises:
        Unauthorized: it is not that token, or it was used.
    """
    path = home / TOKEN_FILE
    try:
        expected = path.read_bytes().strip()
        if expected and hmac.compare_digest(expected, token.encode()):
            path.unlink()
            return
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
