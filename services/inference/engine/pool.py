"""All engines of a policy as one: a request goes to a replica that serves, and to another one if that replica is lost.

    rows ─▶ members ─▶ choose() ─▶ EngineConnection.attempt() ─▶ pieces
              ▲                            │ refused, lost, silent, unusable, wrong version
              └── out of rotation ◀────────┴─▶ the next choice; the tokens so far stand in its prompt

In: requests. Out: pieces of answers, each with the versions that made them. Waits for: a replica. A request without a token moves at
once; one with tokens is continued by a replica with the same version, or else with any version of its arm. A replica that ended an
answer early, or accepted it and sent nothing, never gets the same request again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field

import structlog

from contracts import errors
from contracts.arms import DRAWN
from contracts.assignments import CANDIDATE, LIVE, SLOTS
from contracts.sampling import Span
from engines.card_users import CardUsers
from engines.registry import kind_of
from engines.wire import EngineRequest, Piece, new_spans
from runtime.metrics import ENGINE_REQUESTS_MOVED, USERS_IN_FLIGHT
from services.inference.engine.choosing import (
    KEEPS_IT,
    OTHERS_MAY,
    ClosedReplica,
    RequestLosses,
    WrongVersion,
    choose,
    needed,
    reason_of,
    slot_of,
    version_named,
)
from services.inference.engine.connection import ASK_LATER, EngineConnection
from services.inference.engine.members import Member
from services.inference.engine.rows import ReplicaRows
from services.inference.engine.state import Health, Progress

PATIENCE_SECONDS = 30.0
MOST_LOSSES = 3
"""A prompt that kills engines must not kill them again and again."""
_ACCEPT_SECONDS = 5.0
"""How long a replica may take to accept a request while another one could."""
_MOVE_SECONDS = 10.0
"""A replica that has said for so long that it does not serve, or nothing at all, loses its requests to others."""
_POLL_SECONDS = 0.2
_ANNOUNCED_SECONDS = 1.2
"""After this time a replica has announced a version that it began to serve."""
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class EnginePool:
    """See the module. Belongs to one event loop."""

    policy: str
    """The `model` of requests."""
    region: str
    """Of this process."""
    rows: ReplicaRows
    connect: Callable[[str], EngineConnection]
    """Opens connections to a URL."""
    are_assigned: Callable[[Collection[int]], Awaitable[bool]]
    """Whether an arm pointed at each of these versions of late, as far as that can be read."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long a request waits for a replica."""
    users: CardUsers | None = None
    """Where a trainer on the same card reads how many users wait."""
    _members: dict[str, Member] = field(default_factory=dict, init=False)
    _num_reads: int = field(default=0, init=False)
    _looking: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._in_flight = USERS_IN_FLIGHT.labels(self.policy)

    async def close(self) -> None:
        """Close every connection."""
        if self._looking is not None:
            self._looking.cancel()
        await self.rows.close()
        if self.users is not None:
            self.users.close()
        for member in self._members.values():
            member.close()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece]:
        """One answer, up to the piece with a finish reason. Closing the iterator cancels it.

        Raises UnknownModel, VersionNotResident, ContextLengthExceeded, InvalidRequest, Overloaded: replicas refused, or none has an ability that
        the request needs; EngineFailed, EngineSilent: no usable answer came, and it must not be sent again; Unavailable: no replica came back.
        """
        with nullcontext() if request.background else self._in_flight.track_inprogress():
            await self._look()
            progress, turn = Progress(request), RequestLosses()
            while not progress.is_full:
                member = await self._next(progress, turn)
                instance, seen_at = member.instance, member.row.seen_at
                try:
                    async with aclosing(self._ask(member, progress, turn)) as pieces:
                        async for piece in pieces:
                            yield piece
                            if piece.finish_reason is not None:
                                return
                except (errors.MillraceError, WrongVersion) as error:
                    self._note(member, turn, error, progress, ClosedReplica(instance, seen_at))
            yield progress.cut()

    async def models(self) -> list[str]:
        """The policy, and its versions that can be asked for now."""
        await self._look()
        rows = [member.row for member in self._members.values() if member.serves]
        held = {version for row in rows for version in row.slots.values() if version is not None}
        return [self.policy, *(f"{self.policy}@v{version}" for version in sorted(held))]

    async def healths(self) -> list[Health]:
        """The state of every replica; of one that does not answer, what its row says. Raises Unavailable if none answers."""
        await self._look()
        healths, problems = [], []
        for member in self._members.values():
            if not member.is_stale:
                try:
                    healths.append(await member.health())
                except (errors.Unavailable, errors.EngineFailed) as error:
                    problems.append(error.message)
                    healths.append(member.last_health)
        if len(problems) == len(healths):
            raise errors.Unavailable("; ".join(problems) or self._why_none())
        return healths

    async def slots(self) -> Mapping[str, set[int]]:
        """Arm to the versions that its slots hold, at the replicas that serve.

        Of those in this region alone, if there are any: else the users of an arm would wait longer than others, for the distance.
        """
        await self._look()
        rows = [member.row for member in self._members.values() if member.serves]
        held: dict[str, set[int]] = {}
        for row in [row for row in rows if row.region == self.region] or rows:
            for arm, version in row.slots.items():
                if version is not None:
                    held.setdefault(arm, set()).add(version)
        return held

    async def _ask(self, member: Member, progress: Progress, turn: RequestLosses) -> AsyncGenerator[Piece]:
        slot, wire = slot_of(member.row, progress.request), kind_of(member.row.kind).wire
        progress.begin(member.system)
        is_alone = len(self._in_rotation()) < 2  # noqa: PLR2004 there must be another one
        # An engine that compiles a grammar first is not silent: else one schema would take all replicas out of rotation.
        is_patient = is_alone or progress.request.constraint is not None
        seconds = self.patience_seconds if is_patient else min(_ACCEPT_SECONDS, self.patience_seconds)
        if "support" not in member.row.abilities:
            progress.request = progress.request._replace(with_support=False)
        named = slot.version if slot and "adapters" in member.row.abilities else None
        progress.request = progress.request._replace(adapter=named)
        request = progress.request.salted(slot.version if slot else None)
        body = wire.body(request._replace(model=slot.model) if slot else request, progress.made)
        users = None if request.background else self.users
        with member.working(), nullcontext() if users is None else users.one_more():
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._keep_looking())
            async with aclosing(member.connection.attempt(progress, body, seconds, wire)) as pieces:
                async for piece in pieces:
                    if piece.spans:
                        spans = new_spans(progress.spans, piece.spans)
                        if spans and not await self._is_honest(member, spans):
                            raise WrongVersion(f"tokens of v{spans[-1].version}")
                    turn.deadline = None
                    told = progress.add(piece)
                    if piece.finish_reason is not None:  # the caller asks for no more once it has the last piece
                        member.succeeded()
                        for suspect, message in turn.suspects:
                            suspect.failed("unusable_answer", message)
                    yield told

    async def _next(self, progress: Progress, turn: RequestLosses) -> Member:
        """The replica to ask now; waits until there is one. Raises the last refusal if waiting cannot help, Unavailable if none came in time."""
        while True:
            able = [member for member in self._in_rotation() if not turn.has_closed(member)]
            fresh = [member for member in able if member.name not in turn.avoided]
            if (found := choose(fresh, progress.request, self.region, progress)) is not None:
                return found
            if self._falls_back(progress, turn, able, fresh):
                continue
            self._refuse(progress.request, turn)
            if turn.deadline is None:
                turn.deadline = time.monotonic() + self.patience_seconds
            if time.monotonic() > turn.deadline:
                reason = f"{turn.error.message}; " if turn.error else ""
                raise errors.Unavailable(
                    f"no engine came back within {self.patience_seconds:g} s: {reason}{self._why_none()}; see the logs of the engines, "
                    "then try again"
                )
            turn.avoided.clear()
            for member in self._members.values():
                member.hurry()
            await asyncio.sleep(_POLL_SECONDS)
            await self._look()

    def _falls_back(self, progress: Progress, turn: RequestLosses, able: list[Member], fresh: list[Member]) -> bool:
        """Let live make, or continue, an answer of a drawn arm that no replica can make any more. False if live cannot, either.

        The answer stays one of its arm: an arm is judged by all units that were drawn for it, whatever became of their answers.
        """
        request = progress.request
        if request.arm not in DRAWN or not request.any_version:
            return False
        live = request._replace(arm=LIVE, model=self.policy)
        if choose(fresh, live, self.region, progress) is None:
            if choose(able, live, self.region, progress) is None:
                return False
            turn.avoided.clear()
        _log.warning("live answers for an arm", request_id=request.request_id, arm=request.arm, model=request.model)
        ENGINE_REQUESTS_MOVED.labels("arm_not_held").inc()
        progress.request = live
        return True

    def _refuse(self, request: EngineRequest, turn: RequestLosses) -> None:
        """Raise if waiting cannot help."""
        error = turn.error
        if isinstance(error, errors.Overloaded | errors.UnknownModel) or (
            isinstance(error, errors.VersionNotResident) and (not request.any_version or version_named(request) is None)
        ):
            raise error  # else its row will name the version that it holds now
        if error is not None and turn.closed and all(turn.is_hopeless(member) for member in self._members.values()):
            if isinstance(error, errors.EngineFailed | errors.EngineSilent):
                raise error
            raise errors.EngineFailed(
                f"the engine ended an answer early and still serves ({error.message}); {ASK_LATER}"
            )
        holding = [member for member in self._members.values() if slot_of(member.row, request) is not None]
        named = version_named(request)
        is_known = bool(self._resident()) and not any(member.is_stale for member in self._members.values())
        if named is not None and not holding and is_known:  # while every replica loads, nobody knows what it will hold
            arm = request.arm if request.arm in SLOTS else CANDIDATE
            has_slot = any(arm in member.row.slots for member in self._members.values())
            why = "" if has_slot else f"; no engine has a slot for the arm {arm}: add it to [engine] slots"
            missing = f"{request.model} is not resident; resident: {self._resident()}{why}"
            raise errors.VersionNotResident(missing, param="model")
        for ability, param in needed(request).items():
            if holding and not any(ability in member.row.abilities for member in holding):
                raise errors.InvalidRequest(f"no engine here supports {param} ({ability}); leave it out", param=param)

    def _note(
        self,
        member: Member,
        turn: RequestLosses,
        error: errors.MillraceError | WrongVersion,
        progress: Progress,
        asked: ClosedReplica,
    ) -> None:
        """Decide what a failure says about the replica and the request. Raises it if no other replica may be asked."""
        if not isinstance(error, (*OTHERS_MAY, WrongVersion)) or (
            isinstance(error, errors.EngineFailed) and progress.is_full
        ):
            raise error
        message = error.message if isinstance(error, errors.MillraceError) else str(error)
        if isinstance(error, KEEPS_IT):
            turn.closed[member.name] = asked
        if isinstance(error, (*KEEPS_IT, errors.EngineRestarted)):
            turn.num_lost += 1
        if isinstance(error, errors.EngineFailed):
            # It may be the request's fault: it counts against the replica only if another one can answer it.
            turn.suspects.append((member, message))
        reason = reason_of(error)
        # A slot that gave up says so too, while the replica serves live.
        if reason is not None and (reason != "not_serving" or progress.request.arm not in (*DRAWN, CANDIDATE)):
            member.failed(reason, message)
        turn.avoided.add(member.name)
        wrong = errors.EngineFailed(f"the engine {member.name} sent {message}")
        turn.error = error if isinstance(error, errors.MillraceError) else wrong
        ENGINE_REQUESTS_MOVED.labels(reason or turn.error.code).inc()
        request_id = progress.request.request_id
        _log.warning("request moves to another engine", request_id=request_id, engine=member.name, reason=message)
        if turn.num_lost >= MOST_LOSSES:
            raise errors.EngineFailed(f"engines lost this request {turn.num_lost} times: {message}") from error

    async def _is_honest(self, member: Member, spans: list[Span]) -> bool:
        """Whether its row or an assignment names the versions of its tokens. A table that cannot be read accuses nobody."""
        for seconds in (0.0, 0.0, _ANNOUNCED_SECONDS):
            unnamed = {span.version for span in spans if not member.has_named(span.version)}
            if not unnamed or await self.are_assigned(unnamed):
                return True
            await asyncio.sleep(seconds)
            if not await self.rows.refresh():
                return True
            await self._look()
        return all(member.has_named(span.version) for span in spans)

    def _in_rotation(self) -> list[Member]:
        """Replicas that may be asked: those that serve, else those that are only paused and keep their requests."""
        serving = [member for member in self._members.values() if member.serves]
        return serving or [
            member
            for member in self._members.values()
            if member.reason is None and not member.is_stale and member.row.status == "paused"
        ]

    async def _look(self) -> None:
        """Take the rows as they are now."""
        rows = await self.rows.held()
        if self._num_reads == self.rows.num_reads:
            return
        self._num_reads, now = self.rows.num_reads, time.monotonic()
        for row in rows:
            member = self._members.get(row.name)
            if member is not None and member.row.url != row.url:
                self._members.pop(row.name).close()
                member = None
            if member is None:
                if not row.url:
                    continue
                member = self._members[row.name] = Member(row, self.connect(row.url))
            member.update(row, is_stale=self.rows.is_stale(row.name))
            self._watch(member, now)
        for name in self._members.keys() - {row.name for row in rows}:
            self._members.pop(name).close()

    async def _keep_looking(self) -> None:
        """Look while engines work: a frozen one's answers move although nobody asks for another one."""
        while any(member.num_in_flight for member in self._members.values()):
            await asyncio.sleep(_POLL_SECONDS)
            if self.users is not None:
                self.users.renew()
            await self._look()

    def _watch(self, member: Member, now: float) -> None:
        """Move the requests of a replica that has not served for long, if another one can take them."""
        if not member.is_stale and member.row.status == "serving":
            member.unwell_since = None
        elif member.unwell_since is None:
            member.unwell_since = now
        elif (
            (member.is_stale or now - member.unwell_since > _MOVE_SECONDS)
            and member.num_in_flight
            and any(other.serves for other in self._members.values())
        ):
            member.connection.break_all()

    def _resident(self) -> list[tuple[str, int]]:
        held = {slot for member in self._members.values() for slot in member.row.slots.items()}
        return sorted((arm, version) for arm, version in held if version is not None)

    def _why_none(self) -> str:
        said = [
            f"{member.name}: {member.reason or member.row.status}{', not seen lately' if member.is_stale else ''}"
            for member in self._members.values()
        ]
        return ", ".join(said) or "no engine has announced itself"
