"""Which replica answers a request. Pure.

A replica can answer if a slot holds what is asked for and it has the abilities that the request needs. Among those, in this order:
one whose slot for the arm holds the version that was drawn, replicas of the own region, one that holds the version that made the answer so far, and then the session's replica or the one with
the fewest requests in flight.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from contracts.assignments import CANARY, HOLDOUT, SLOTS
from contracts.engines import Ability, EngineReplica
from engines.registry import kind_of
from engines.wire import EngineRequest
from services.inference.engine.members import Member

_PINNED = re.compile(r".*@v([0-9]+)")
_ONE_VERSION = (CANARY, HOLDOUT)
"""Arms that are judged: no other version answers for them."""


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


def _is_elsewhere(row: EngineReplica, request: EngineRequest) -> bool:
    """True if the slot of the request's arm does not hold the version that was drawn: another slot may be swapped at any moment."""
    named = version_named(request)
    return named is not None and request.arm in SLOTS and row.slots.get(request.arm) != named


def version_named(request: EngineRequest) -> int | None:
    """The version in a request's model; None if it names only the policy."""
    found = _PINNED.fullmatch(request.model)
    return int(found[1]) if found else None


def choose(
    members: Iterable[Member], request: EngineRequest, region: str, last_version: int | None, *, is_continued: bool
) -> Member | None:
    """The best replica among those that may be asked; None if none can answer."""
    abilities = needed(request).keys()
    able = []
    for member in members:
        slot = slot_of(member.row, request)
        if slot is None or not abilities <= member.row.abilities:
            continue
        if is_continued and not kind_of(member.row.kind).wire.can_continue(request):
            continue
        rank = (
            _is_elsewhere(member.row, request),
            member.row.region != region,
            last_version is not None and slot.version != last_version,
        )
        able.append((rank, member))
    if not able:
        return None
    best = min(rank for rank, _ in able)
    equal = [member for rank, member in able if rank == best]
    if len(equal) == 1:
        return equal[0]
    if request.session is not None:
        session = request.session
        return max(equal, key=lambda member: weight_of(session, member.name))
    return min(equal, key=lambda member: (member.num_in_flight, random.random()))  # noqa: S311 which of equals needs no secret


def weight_of(session: str, name: str) -> bytes:
    """The weight of a replica for a session; the largest has it. When a replica leaves, only its own sessions move.

    Rendezvous hashing: Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates".
    """
    return blake2b(f"{session}\0{name}".encode(), digest_size=8).digest()
