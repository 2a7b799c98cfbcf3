"""What became of one request at the replicas that were asked, and what each failure says of them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from contracts.errors import (
    EngineFailed,
    EngineRestarted,
    EngineSilent,
    MillraceError,
    Overloaded,
    Unavailable,
    UnknownModel,
    VersionNotResident,
)
from engines.registry import OWN
from services.inference.engine.connection import LostRequest
from services.inference.engine.members import Member, Reason
from services.inference.engine.state import RequestNotTaken

_RENEWED_SECONDS = 1.5  # by the replica's clock: it renewed its row twice


class WrongVersion(Exception):
    """A replica named a version for its tokens that nobody assigned and that its row does not name."""


KEEPS_IT = (LostRequest, EngineSilent, EngineFailed)
"""After these the replica may still work on the request, or would fail again."""
OTHERS_MAY = (*KEEPS_IT, Unavailable, Overloaded, VersionNotResident, UnknownModel)
"""After these another replica may be asked. `EngineRestarted` is an `Unavailable`."""


class ClosedReplica(NamedTuple):
    """A replica that may still work on a request: its instance, and when it had renewed its row."""

    instance: str
    seen_at: float


class RequestLosses:
    """What happened to one request so far."""

    def __init__(self) -> None:
        self.avoided: set[str] = set()
        """Replicas that refused it; asked again once no other is left."""
        self.closed: dict[str, ClosedReplica] = {}
        """Replicas that never get it again unless they are started again."""
        self.suspects: list[tuple[Member, str]] = []
        self.num_lost = 0
        self.deadline: float | None = None
        self.error: MillraceError | None = None

    def has_closed(self, member: Member) -> bool:
        """True if this start of a replica never gets the request again."""
        closed = self.closed.get(member.name)
        return closed is not None and closed.instance == member.instance

    def is_hopeless(self, member: Member) -> bool:
        """True if, besides, it is alive. After a lost connection it may be started again: it is alive once it says so."""
        if not self.has_closed(member):
            return False
        if not isinstance(self.error, LostRequest):
            return True
        if member.row.kind == OWN:
            return member.reason is None  # it came back, and named its instance
        return not member.is_stale and member.row.seen_at > self.closed[member.name].seen_at + _RENEWED_SECONDS


_REASONS: tuple[tuple[type[Exception], Reason | None], ...] = (
    (WrongVersion, "wrong_version"),
    (EngineSilent, "silent"),
    (LostRequest, "lost"),
    (RequestNotTaken, "not_serving"),
    (EngineRestarted, None),
    (Unavailable, "unreachable"),
)
"""The first class that fits decides: those before `Unavailable` are special cases of it."""


def reason_of(error: MillraceError | WrongVersion) -> Reason | None:
    """Why a replica leaves the rotation; None if it stays."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
