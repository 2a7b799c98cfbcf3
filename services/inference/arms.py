"""Which arm answers a request: assignments, read again every 0.2 seconds, and a draw that is fixed for a person, a session or an answer.

Only requests of users are drawn. Whoever names a version, or the oldest that will do, gets it with probability 1; other purposes get
live.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import structlog

from contracts import revocations
from contracts.arms import DRAWN, Unit, draw_arm, has_share, logged_draw, read_arm_secret, unit_of
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, LIVE, PROVIDER, SLOTS, Assignment, read
from contracts.draws import LoggedDraw, UnitKind
from contracts.errors import InvalidSettings, Unavailable, VersionRevoked
from contracts.keys import Caller
from contracts.version_history import read_assigned_since
from runtime.database import Database
from runtime.replicas import SessionStore
from runtime.replicas.in_process import LocalSessionStore
from services.inference.engine.pool import EnginePool
from services.inference.requests import ChatRequest
from services.inference.terms import Terms

PINNED = "pinned"
_READ_SECONDS = 0.2
_NEWER = (CANARY, LEARNING, HOLDOUT, CANDIDATE)
"""Arms that may answer where live is too old; those that proved most come first."""
_MOST_LEARNED = 8
_LATELY_SECONDS = 600.0
"""An answer may be in the making for so long, and name every version that its engine had meanwhile."""
_log = structlog.get_logger(__name__)


class ChosenArm(NamedTuple):
    """The arm that answers one request, and the probability with which it was chosen."""

    name: str
    probability: float
    model: str
    """The model of the request to the engine: the policy (its live version by then) or one version of it."""


def choose_arm(
    assignments: Mapping[str, Assignment],
    policy: str,
    *,
    unit: str | None = None,
    secret: bytes = b"",
    version: int | None = None,
    minimum: int | None = None,
    served: Collection[str] = SLOTS,
) -> ChosenArm:
    """The arm of a request: one that holds the version it names, else one that is new enough, else that of its unit.

    `unit`: what is drawn, see `contracts.arms`; None: nothing is drawn, so the answer is live's. `secret`: keys the draw. `version`: the only
    one that may answer. `minimum`: the oldest one that may; live answers, unless only another arm is known to be new enough. `served`: see
    `served_arms`; nothing is drawn for the others.
    """
    versions = {name: arm.version for name, arm in assignments.items() if arm.version is not None}
    if version is not None:
        holders = [name for name in SLOTS if versions.get(name) == version]
        ready = [name for name in holders if name in served]
        return ChosenArm(next(iter([*ready, *holders]), PINNED), 1.0, f"{policy}@v{version}")
    if minimum is not None:
        if versions.get(LIVE, minimum) < minimum:
            for name in _NEWER:
                if name in served and versions.get(name, -1) >= minimum:
                    return ChosenArm(name, 1.0, f"{policy}@v{versions[name]}")
        return ChosenArm(LIVE, 1.0, policy)
    if unit is None:
        return ChosenArm(LIVE, 1.0, policy)
    drawn = draw_arm(assignments, unit, secret, served)
    model = policy if drawn.arm in {LIVE, PROVIDER} else f"{policy}@v{versions[drawn.arm]}"
    return ChosenArm(drawn.arm, drawn.probability, model)


def has_draw(assignments: Mapping[str, Assignment]) -> bool:
    """True if an arm beside live has a share."""
    return any(name in DRAWN and has_share(arm) for name, arm in assignments.items())


def served_arms(
    assignments: Mapping[str, Assignment], slots: Mapping[str, Collection[int]], learned: Collection[int] = ()
) -> frozenset[str]:
    """The arms that an engine can answer for now. Nothing is drawn for another arm, so nobody waits for a version that loads.

    This hangs on the engines alone, never on who asks: at each moment every unit has the probability that is logged for it, and
    answers are compared only with others of the same time and probability. `slots`: arm to the versions that its slots hold now;
    `learned`: versions that may still answer for the learning arm, see `Assignments`. The canary and the hold-out are one version each, so
    only a slot that holds it counts.
    """
    found = {LIVE}
    for name, arm in assignments.items():
        held = slots.get(name, ())
        if arm.version in held or (name == LEARNING and not set(learned).isdisjoint(held)):
            found.add(name)
    return frozenset(found)


class Assignments:
    """The assignments of one policy, at most 0.2 seconds old while the database is reachable.

    `learned`: the versions of the learning arm since it was last empty, oldest first, as far as they were seen. It moves often, so the
    version before answers while an engine loads the next one. A rollback empties the arm, so that no revoked version does. `revoked`:
    versions that nobody gets any more, also not by name; a slot may hold one until its arm names another. `secret`: keys the draw; read once.
    """

    def __init__(self, database: Database, policy: str) -> None:
        self._database, self._policy = database, policy
        self._held: dict[str, Assignment] = {}
        self._read_at = float("-inf")
        self.learned: tuple[int, ...] = ()
        self.revoked: frozenset[int] = frozenset()
        self.secret = b""

    async def held(self) -> Mapping[str, Assignment]:
        """All arms by name. While the database is unreachable, the last known ones: users do not wait for it."""
        # Before anything is known everybody waits for it: `live` may be a version that no user gets.
        if not self._held or time.monotonic() - self._read_at > _READ_SECONDS:
            self._read_at = time.monotonic()
            try:
                found, self.revoked = await asyncio.to_thread(self._read)
                self.learned = _learned(self.learned, self._held.get(LEARNING), found.get(LEARNING))
                self._held = found
            except (Unavailable, InvalidSettings) as error:
                _log.warning("assignments not read", reason=error.message)
        return self._held

    async def include(self, versions: Collection[int]) -> bool:
        """Whether an arm pointed at each of these versions in the last ten minutes. True while the database is unreachable.

        Two versions may follow each other faster than arms, or rows of engines, are read: so the history is asked, too.
        """
        if {arm.version for arm in (await self.held()).values()}.issuperset(versions):
            return True
        try:
            return (await asyncio.to_thread(self._read_lately)).issuperset(versions)
        except Unavailable as error:
            _log.warning("assignments not read", reason=error.message)
            return True

    def look_again(self) -> None:
        """An arm was moved: the next request reads again. Callable from any thread."""
        self._read_at = float("-inf")

    def _read_lately(self) -> set[int]:
        with self._database.snapshot() as connection:
            return read_assigned_since(connection, self._policy, time.time() - _LATELY_SECONDS)

    def _read(self) -> tuple[dict[str, Assignment], frozenset[int]]:
        with self._database.snapshot() as connection:
            self.secret = self.secret or read_arm_secret(connection)
            found = read(connection, self._policy)
            if found == self._held:  # whoever revokes a version moves an arm in the same transaction
                return found, self.revoked
            return found, frozenset(revocations.read(connection, self._policy))


class SessionUnits:
    """What an arm is drawn for: a person, a session or one answer. The first call that is drawn decides for its whole session.

    An agent names its user in some of its calls and not in others, and nobody changes arms in the middle of a session.

    `wanted`: the kind of unit that is drawn where the request has it. `store`: what all replicas read; without an answer from it, a call is
    drawn by what it names itself. `seconds`: how long the unit of a session is kept, from its first call. Belongs to one event loop.
    """

    def __init__(self, wanted: UnitKind, store: SessionStore, seconds: float) -> None:
        self._wanted, self._seconds = wanted, seconds
        self._store, self._memory = store, LocalSessionStore()

    async def unit_of(self, request: ChatRequest, tenant: str, completion_id: str, *, logged: bool) -> Unit:
        """The unit of a request. `logged` False: nothing of it may be stored, so its session is known to this process alone."""
        session = request.labels.get("session_id")
        name, places = "", tuple[SessionStore, ...]()
        if self._wanted == "user" and session is not None:
            name = "unit:" + blake2b(f"{tenant}\0{session}".encode(), digest_size=16).hexdigest()
            places = (self._memory, self._store) if logged else (self._memory,)
        for place in places:
            [value] = await place.read([name])
            with suppress(msgspec.MsgspecError):  # another release wrote it in a form of its own
                kept: Unit | None = None if value is None else msgspec.msgpack.decode(value, type=Unit)
                if kept is not None:
                    if place is not self._memory:
                        await self._memory.write({name: msgspec.msgpack.encode(kept)}, self._seconds)
                    return kept
        person = request.person
        unit = unit_of(self._wanted, tenant=tenant, person=person, session_id=session, completion_id=completion_id)
        for place in places:
            await place.write({name: msgspec.msgpack.encode(unit)}, self._seconds)
        return unit


class DrawnArm(NamedTuple):
    """The arm of a request, and what becomes known with it."""

    arm: ChosenArm
    version: int | None
    """The one that the arm is assigned."""
    draw: LoggedDraw | None
    """How it was drawn; None: nothing was drawn."""


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Gives each request its arm; see the module. `has_front`: a provider answers for the arm of that name."""

    policy: str
    assignments: Assignments
    units: SessionUnits
    engine: EnginePool
    has_front: bool = False

    async def draw(self, request: ChatRequest, caller: Caller, terms: Terms, completion_id: str) -> DrawnArm:
        """The arm of a request, drawn if its terms allow it. Its session keeps it. Raises VersionRevoked: a rollback revoked what it names."""
        assigned = await self.assignments.held()
        if terms.version in self.assignments.revoked:
            why = f"was revoked and never serves again; ask for {self.policy!r}"
            raise VersionRevoked(f"{self.policy}@v{terms.version} {why}", param="model")
        served = served_arms(assigned, await self.engine.slots(), self.assignments.learned)
        served |= {PROVIDER} if self.has_front else set()
        unit = None
        if terms.may_draw and has_draw(assigned):
            unit = await self.units.unit_of(request, caller.tenant, completion_id, logged=terms.logged)
        arm = choose_arm(
            assigned,
            self.policy,
            unit=unit.name if unit else None,
            secret=self.assignments.secret,
            version=terms.version,
            minimum=terms.requirement.minimum,
            served=served,
        )
        held = assigned.get(arm.name)
        draw = None if unit is None else logged_draw(assigned, arm.name, unit, served, api_key=caller.key_id)
        return DrawnArm(arm, held.version if held else None, draw)

    async def models(self) -> list[str]:
        """The policy, and the versions of it that can be asked for now."""
        await self.assignments.held()
        revoked = {f"{self.policy}@v{version}" for version in self.assignments.revoked}
        return [name for name in await self.engine.models() if name not in revoked]


def _learned(known: tuple[int, ...], before: Assignment | None, now: Assignment | None) -> tuple[int, ...]:
    if now is None or now.version is None:
        return ()
    if before is None or before.version is None or now.epoch - before.epoch not in {0, 1}:
        return (now.version,)  # it may have been empty in between
    return known if now.version == before.version else (*known, now.version)[-_MOST_LEARNED:]
