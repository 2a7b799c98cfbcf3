"""One train while this process conducts it: its evidence, its timers, and its next move.

All that decides is read from the database; only patience is kept here, so a new process begins it anew. Silence and absence are timed
by a clock that never jumps. Times in which nobody looked, by which the clock jumped, or in which the arms were held are not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

import structlog

from contracts import train_points
from pipelines.release.train import moves, repository
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.assess import Assessment
from pipelines.release.train.gathering import evidence_of_train
from pipelines.release.train.repository import Train
from pipelines.release.train.rules import PLACE, TrainMove, decide, no_room
from pipelines.release.train.standing import TrackView
from pipelines.release.train.strata import Standing
from pipelines.release.train.words import prospect
from runtime.database import Database

_NOTE_SECONDS, _POINT_SECONDS, _MOST_POINTS = 2.0, 10.0, 300
_GAP_SECONDS = 60.0
"""A longer time without a look, or a jump of the clock by more, is not counted."""
ABSENT_SECONDS = 30.0
"""A train stops when no engine held its version for so long: a restart takes less."""
NO_USERS = "No answer of a user was joined in the last 30 s: the train waits for users, or for episodes."
_HARMED = "their answers are left out; the last stage lasts harmed_seconds from now or from its begin, so that somebody can withdraw the version"
_VETO = "Nobody else gets it by itself; who wants the habit promotes the version by hand."
_TOLD = {"advance": "train advanced", "stop": "train stopped", "go_on": "train goes on"}

log = structlog.get_logger()


class ShadowResult(NamedTuple):
    """What the shadow says: whether the version is refused, and why. `facts`: JSON, stored in the train's evidence."""

    refused: bool
    says: str
    facts: Mapping[str, Any]
    blames_version: bool = True
    """False: the place of the canary's slots may be the cause, so the refusal revokes nothing."""
    is_over: bool = True
    """False: more prompts are to be asked; what was answered is kept."""


Shadow = Callable[[Train, threading.Event], ShadowResult]
"""Compares both versions of a train on recent prompts, unseen by users, a piece at each call. Raises MillraceError: a fault of ours, to be
tried again."""
Tell = Callable[[str, str, int, str | None], None]
"""Is told of every move after it is committed: what, why, of which version, and how the train ended, if it did."""


@dataclass(eq=False)
class Trip:
    """See the module. `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""

    train: InitVar[Train]
    database: Database
    tasks: Mapping[str, TaskRule]
    shadow: Shadow | None
    tell: Tell
    clock: Callable[[], float]
    monotonic: Callable[[], float]

    def __post_init__(self, train: Train) -> None:
        self.train_id = train.id
        self._evidence = evidence_of_train(train, self.tasks, self.monotonic)
        self._settings = self._evidence.settings
        self._began = self.monotonic()
        self._looked: tuple[float, float] | None = None
        """Both clocks at the last look that was counted."""
        self._absent_since: float | None = None
        self._stopped_since: float | None = None
        self._noted_at = float("-inf")
        self._is_hopeless: bool | None = None
        """Whether there was too little time for a proof; None: nothing was said of it yet."""
        self._harmed = frozenset[str]()

    def look(
        self, seen: TrackView, train: Train, now: float, stop: threading.Event, *, change: TrainMove | None = None
    ) -> None:
        """Make at most one move. Raises as the moves do. `change`: to a better version, if the train would go on."""
        if self._count(seen, train, now):
            return
        with self.database.snapshot() as connection:
            self._evidence.read(connection, now)
        since = train.evidence.get("harmed_since") or now
        where = Standing(train.stage, train.stage_at, train.since, train.state, since, train.provider_share)
        found = self._evidence.assess(now, where)
        self._tell_harmed(train, found)
        # The start by which patience ends: later, if a time did not count.
        due = where._replace(started_at=train.started_at + train.paused_seconds)
        decided = _spared(train, decide(due, found, self._settings, now))
        move = self._next(seen, train, found, decided, now)
        if _waits_for_users(seen, train):
            self._stopped_since = self._absent_since = None  # when they come, it listens anew
            if "withdraw" in {decided.kind, move.kind}:
                move = TrainMove("stay", NO_USERS)
        if change is not None and move.kind in {"stay", "advance"}:
            move = change
        said = self._promise(train, found, where, now)
        facts = self._facts(seen, train, {**found, "promise": said}, move, now)
        self._note(train, facts, now)
        if seen.hold is not None:
            return
        if move.kind == "advance" and train.stage == repository.IN_SHADOW:
            move, facts = self._cast_shadow(train, facts, stop)
        if move.kind != "stay":
            self._make(train, move, facts)

    def _tell_harmed(self, train: Train, found: Assessment) -> None:
        """Log it when the version begins to seem worse for somebody alone: an operator knows whether it is, or is only said to be."""
        harmed = frozenset(found["harmed"])
        if new := sorted(harmed - self._harmed):
            log.warning("worse for one alone", version=train.version, harmed=new, effect=_HARMED)
        self._harmed |= harmed

    def _promise(self, train: Train, found: Assessment, where: Standing, now: float) -> str:
        """What a proof takes; logged when it becomes known whether there is time for it."""
        left = train.started_at + train.paused_seconds + self._settings.patience_seconds - now
        promised = prospect(found, train.settings, self._settings, where, seconds_left=left)
        if (is_hopeless := promised.is_in_time is False) != self._is_hopeless:
            self._is_hopeless = is_hopeless
            tell = log.warning if is_hopeless else log.info
            tell("what a proof takes", version=train.version, says=promised.says)
        return promised.says

    def _count(self, seen: TrackView, train: Train, now: float) -> bool:
        """Shift the train's times by a time that does not count; True if there was one."""
        if not _is_counted(seen, train):
            self._looked = None
            return False
        tick = self.monotonic()
        then, then_tick = self._looked or (train.evidence.get(repository.COUNTED_AT, now), tick)
        gap = (now - then) - (tick - then_tick)
        if abs(gap) > _GAP_SECONDS:
            with self.database.transaction() as connection:
                moves.shift(connection, train, gap, now)
            self._evidence = evidence_of_train(train, self.tasks, self.monotonic)  # and read everything anew
            log.warning("time not counted", version=train.version, seconds=round(gap, 1))
        self._looked = now, tick
        return abs(gap) > _GAP_SECONDS

    def _next(self, seen: TrackView, train: Train, found: Assessment, decided: TrainMove, now: float) -> TrainMove:
        """The decision by the answers, unless the engines or the shadow come first."""
        if decided.kind == "revoke":
            return decided
        if (absent := self._absence(seen, train)) is not None:
            return absent
        if train.stage == repository.IN_SHADOW:
            return self._next_in_shadow(seen, train, now)
        if self._is_too_early(train, decided):
            return TrainMove("stay", f"not yet: {decided.reason}")
        if decided.kind in {"advance", "arrive"}:
            why = self._veto(train)
            if why is None and decided.kind == "advance":
                share = self._settings.stages[train.stage + 1]
                why = no_room(share, len(seen.holders), seen.num_engines, found, self._settings)
            if why is not None:
                return TrainMove("withdraw" if self._is_late(train, now) else "stay", why)
        return decided

    def _next_in_shadow(self, seen: TrackView, train: Train, now: float) -> TrainMove:
        if (why := self._veto(train)) is not None:
            return TrainMove("withdraw", why)  # it has no users yet, and waiting would change nothing
        if train.state == repository.STOPPED:
            return TrainMove("go_on", f"{', '.join(seen.holders)} holds v{train.version}")
        if self._is_late(train, now):
            return TrainMove("withdraw", f"the shadow did not end in {self._settings.patience_seconds:.0f} s")
        return TrainMove("advance", "the first stage follows the shadow")

    def _veto(self, train: Train) -> str | None:
        """Why the behaviour monitors keep the version from more users; None if they do not."""
        with self.database.snapshot() as connection:
            says = repository.read_vetoes(connection, train.version, train.blessed)
        return f"{' '.join(says)} {_VETO}" if says else None

    def _is_late(self, train: Train, now: float) -> bool:
        return now - train.started_at - train.paused_seconds > self._settings.patience_seconds

    def _absence(self, seen: TrackView, train: Train) -> TrainMove | None:
        """What to do about a version that no engine holds; None if one does."""
        now = self.monotonic()
        if seen.holders:
            self._absent_since = None
            return None
        self._absent_since = now if self._absent_since is None else self._absent_since
        seconds = now - self._absent_since
        if train.state != repository.STOPPED:
            return TrainMove("stop" if seconds >= ABSENT_SECONDS else "stay", seen.why_absent)
        # While no engine runs at all, nothing speaks against the version.
        if seconds >= ABSENT_SECONDS + self._settings.silence_seconds and seen.num_engines:
            return TrainMove("withdraw", f"{seen.why_absent}, for {seconds:.0f} s")
        return TrainMove("stay", seen.why_absent)

    def _is_too_early(self, train: Train, move: TrainMove) -> bool:
        """Silence ends nothing before it was listened to for as long: this process may have just begun to read the log."""
        now, silence = self.monotonic(), self._settings.silence_seconds
        if train.state != repository.STOPPED:
            self._stopped_since = None
            return move.kind == "stop" and now - self._began < silence
        self._stopped_since = now if self._stopped_since is None else self._stopped_since
        return move.kind == "withdraw" and now - self._stopped_since < silence

    def _cast_shadow(
        self, train: Train, facts: Mapping[str, Any], stop: threading.Event
    ) -> tuple[TrainMove, dict[str, Any]]:
        """The move that follows, and the facts with what was found."""
        said = ShadowResult(False, "no shadow", {"says": "no shadow"})
        if self.shadow is not None and self._settings.shadow_prompts > 0:
            said = self.shadow(train, stop)
        noted = {**facts, "shadow": said.facts, repository.COUNTED_AT: self.clock()}
        if not said.is_over:
            with self.database.transaction() as connection:
                repository.note_evidence(connection, train, noted)
            return TrainMove("stay", said.says), noted
        if said.refused and not said.blames_version:
            return TrainMove("withdraw", f"{said.says}. {PLACE}"), noted
        move = TrainMove("revoke" if said.refused else "advance", said.says)
        # Without a comparison its bytes or numbers are broken.
        return _spared(train, move) if said.facts.get("metrics") else move, noted

    def _make(self, train: Train, move: TrainMove, facts: Mapping[str, Any]) -> None:
        with self.database.transaction() as connection:
            moves.make(connection, train, move, facts, self.clock())
        state = moves.ENDED.get(move.kind)
        self.tell(_TOLD.get(move.kind) or f"train {state}", move.reason, train.version, state)

    def _note(self, train: Train, facts: Mapping[str, Any], now: float) -> None:
        if self.monotonic() - self._noted_at < _NOTE_SECONDS:
            return
        self._noted_at = self.monotonic()
        point, subject = _point(train, facts), train_points.primary_of(train.version)
        with self.database.transaction() as connection:
            repository.note_evidence(connection, train, facts)
            if point is not None:
                repository.add_point(
                    connection, train.policy, subject, now, point, least=_POINT_SECONDS, most=_MOST_POINTS
                )

    def _facts(
        self, seen: TrackView, train: Train, found: Mapping[str, Any], move: TrainMove, now: float
    ) -> dict[str, Any]:
        """What is stored: the assessment, what happens next and why, and what the train must remember."""
        facts = {**found, "next": {"kind": move.kind, "reason": move.reason}, repository.COUNTED_AT: now}
        kept = ("shadow", repository.PAUSED, repository.STOPS, repository.SINCE, repository.CHANGED_IN)
        facts |= {name: train.evidence[name] for name in kept if name in train.evidence}
        if seen.hold is not None:
            facts["held"] = seen.hold.words
        if not _is_counted(seen, train):
            facts[repository.COUNTED_AT] = train.evidence.get(repository.COUNTED_AT, now)
        return facts


def _spared(train: Train, move: TrainMove) -> TrainMove:
    """A version that is worse than a provider is not spoiled: it stays behind, and what was learned from it is not taken back."""
    return move._replace(kind="withdraw") if move.kind == "revoke" and train.provider_share else move


def _waits_for_users(seen: TrackView, train: Train) -> bool:
    return train.state == repository.STOPPED and not seen.has_users


def _is_counted(seen: TrackView, train: Train) -> bool:
    """Whether this time counts for the train's patience and stage."""
    return seen.hold is None and not _waits_for_users(seen, train)


def _point(train: Train, facts: Mapping[str, Any]) -> dict[str, object] | None:
    """The primary metric of the task with the most answers; None without one."""
    primary = [item for item in facts["metrics"] if item["kind"] == "primary"]
    if not primary:
        return None
    most = max(primary, key=lambda item: item["num_canary"])
    names = ("task", "difference", "low", "high", "num_canary", "num_live")
    return {name: most[name] for name in names} | {"share": moves.share_of(train)}
