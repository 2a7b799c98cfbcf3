"""Which replica answers a request, and what the failures of those that were asked say of them. Pure.

A replica can answer if a slot holds what is asked for and it has the abilities that the request needs. Among those, in this order: one
whose slot for the arm holds the version that was drawn, replicas of the own region, one that holds the version that made the answer so
far, and then the session's replica or the one with the fewest requests in flight.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from contracts import errors
from contracts.assignments import CANARY, HOLDOUT, SLOTS
from contracts.engines import Ability, EngineReplica
from engines.registry import OWN, kind_of
from engines.wire import EngineRequest
from services.inference.engine.connection import LostRequest
from services.inference.engine.members import Member, Reason
from services.inference.engine.state import Progress, RequestNotTaken

_PINNED = re.compile(r".*@v([0-9]+)")
_ONE_VERSION = (CANARY, HOLDOUT)
"""Arms that are judged: no other version answers for them."""
_RENEWED_SECONDS = 1.5  # by the replica's clock: it renewed its row twice


class ServingSlot(NamedTuple):
    """The slot of a replica that can answer a request."""

    version: int
    model: str
    """What our engine calls it."""


def needed(request: EngineRequest) -> dict[Ability, str]:
    """The abilities that a request needs, each with the parameter that needs it."""
    sampling = request.sampling
    found: dict[Ability, str] = {}
    if request.constraint is not None:
        found["constraints"] = "response_format"
    if request.num_top:
        found["top_logprobs"] = "top_logprobs"
    if sampling.seed is not None:
        found["seed"] = "seed"
    for name in ("logit_bias", "frequency_penalty", "presence_penalty"):
        if getattr(sampling, name):
            found["penalties"] = name
    if sampling.repetition_penalty != 1.0:
        found["penalties"] = "repetition_penalty"
    return found


def slot_of(row: EngineReplica, request: EngineRequest) -> ServingSlot | None:
    """The slot that answers a request on this replica; None if it has none."""
    named = version_named(request)
    if named is not None:
        if named in row.slots.values():
            return ServingSlot(named, request.model)
        if not request.any_version:
            return None
    held = row.slots.get(request.arm)
    if held is None or (named is not None and request.arm in _ONE_VERSION):
        return None
    return ServingSlot(held, request.model if named is None else f"{row.policy}@v{held}")


def version_named(request: EngineRequest) -> int | None:
    """The version in a request's model; None if it names only the policy."""
    found = _PINNED.fullmatch(request.model)
    return int(found[1]) if found else None


def choose(members: Iterable[Member], request: EngineRequest, region: str, progress: Progress) -> Member | None:
    """The best replica for the rest of an answer, among those that may be asked; None if none can give it."""
    abilities, is_continued = needed(request).keys(), bool(progress.made)
    last_version = progress.spans[-1].version if progress.spans else None
    drawn = version_named(request) if request.arm in SLOTS else None
    able = []
    for member in members:
        row, slot = member.row, slot_of(member.row, request)
        if slot is None or not abilities <= row.abilities:
            continue
        if is_continued and not kind_of(row.kind).wire.can_continue(request):
            continue
        # In another slot, which may be swapped at any moment.
        is_elsewhere = drawn is not None and row.slots.get(request.arm) != drawn
        is_other = last_version is not None and slot.version != last_version
        able.append(((is_elsewhere, row.region != region, is_other), member))
    if not able:
        return None
    best = min(rank for rank, _ in able)
    equal = [member for rank, member in able if rank == best]
    if len(equal) == 1:
        return equal[0]
    if (session := request.session) is not None:
        return max(equal, key=lambda member: _weight_of(session, member.name))
    return min(equal, key=lambda member: (member.num_in_flight, random.random()))  # noqa: S311 which of equals needs no secret


def _weight_of(session: str, name: str) -> bytes:
    """The weight of a replica for a session; the largest has it. When a replica leaves, only its own sessions move.

    Rendezvous hashing: Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates".
    """
    return blake2b(f"{session}\0{name}".encode(), digest_size=8).digest()


class WrongVersion(Exception):
    """A replica named a version for its tokens that nobody assigned and that its row does not name."""


KEEPS_IT = (LostRequest, errors.EngineSilent, errors.EngineFailed)
"""After these the replica may still work on the request, or would fail again."""
OTHERS_MAY = (*KEEPS_IT, errors.Unavailable, errors.Overloaded, errors.VersionNotResident, errors.UnknownModel)
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
        self.error: errors.MillraceError | None = None

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
    (errors.EngineSilent, "silent"),
    (LostRequest, "lost"),
    (RequestNotTaken, "not_serving"),
    (errors.EngineRestarted, None),
    (errors.Unavailable, "unreachable"),
)
"""The first class that fits decides: those before `Unavailable` are special cases of it."""


def reason_of(error: errors.MillraceError | WrongVersion) -> Reason | None:
    """Why a replica leaves the rotation; None if it stays."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
