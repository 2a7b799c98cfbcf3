"""Conducts the release train: a version that passed the gate is proven on users, stage by stage, before everybody gets it.

In: arms, verdicts, revocations, holds, engine rows, and the evidence in `train_answer`. Out: rows of `train` and `train_point`, moves of
the arms canary, live, learning and training (`moves.py`). Waits for: nothing, except for the shadow's answers.

    gate ──accepted──▶ shadow ──▶ canary: stage after stage ──proven──▶ live
                          │          │  ▲                 └──worse──▶ revoked: the trainer goes back to live
                          │          ▼  │ evidence again
                          └──────▶ stopped ──nothing for as long again, or nothing proven in time──▶ withdrawn

Each look reads the standing from the database, so a new conductor goes on where the last one was. A fault of our own moves nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass

import structlog
from sqlalchemy import Connection

from contracts import assignments, error_budget, holds, revocations, train_points
from contracts.assignments import CANARY, LEARNING, LIVE, MOVED, provider_share
from contracts.errors import Held, NotFound, StaleWrite, Unavailable
from contracts.faults import FaultPoint, no_fault
from contracts.rollback import left_behind
from contracts.version_history import read_live_history
from pipelines.release.looping import LookLoop
from pipelines.release.train import moves, repository, standing
from pipelines.release.train.answers import TaskRule, patience_of
from pipelines.release.train.learning_guard import LearningGuard
from pipelines.release.train.moves import is_on_track
from pipelines.release.train.repository import CHANGED_IN, CHANGED_TO, REVOKED, Train
from pipelines.release.train.rules import TrainMove, better_by
from pipelines.release.train.shadow.repository import forget_pairs, read_pace
from pipelines.release.train.standing import TrackView, TrainSlots, ended_by_others, version_of
from pipelines.release.train.trip import NO_USERS, Shadow, Trip
from pipelines.release.train.words import PACE, WANTED_LEVEL
from runtime.database import Database
from runtime.metrics import TRAIN_FAILURES, TRAIN_MOVES, TRAIN_STAGE, TRAIN_WITHOUT_SLOT
from runtime.operations import LONGEST_WORK_SECONDS
from runtime.replicas import Bell
from runtime.train_settings import TrainSettings

LOOK_SECONDS = 1.0
_PIECE, _CLEAN_SECONDS = 5_000, 600.0
_COUNTED = {
    f"train {kind}": kind for kind in ("departed", "advanced", "stopped", "goes on", "shipped", "withdrawn", "revoked")
} | {"learning version revoked": "learning revoked"}
"""By what is logged: the kind of a move in the metrics."""
WAITING_FOR_SLOT = (
    "versions that pass the gate wait for the slot, and none goes live unproven; if it was removed for good, write enabled = false "
    "into [train] and restart release"
)

log = structlog.get_logger()


@dataclass(eq=False)
class Conductor:
    """See the module.

    Args:
        settings: of the next departures; a running train keeps its own.
        tasks: by name, what is compared.
        lift_since: by the time, the time before which the comparison with the hold-out needs no answers (UTC epoch seconds).
        shadow: None: the canary begins without one.
        clock: UTC epoch seconds, by the database if this machine's clock is off.
    """

    database: Database
    _: KW_ONLY
    policy: str
    settings: TrainSettings
    tasks: Mapping[str, TaskRule]
    slots: TrainSlots
    bell: Bell
    lift_since: Callable[[float], float]
    shadow: Shadow | None = None
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    fault: FaultPoint = no_fault

    def __post_init__(self) -> None:
        self._guard = LearningGuard(
            self.database, policy=self.policy, tasks=self.tasks, settings=self.settings, monotonic=self.monotonic
        )
        self._trip: Trip | None = None
        self._better = dict[int, str | None]()
        """By waiting version: how it beats the one on the trip."""
        self._users_told = False
        self._clean_at = float("-inf")
        self._without_bytes: set[int] = set()
        self._looked_at = self.monotonic()
        self._slots_told: frozenset[str] | None = None
        for kind in _COUNTED.values():
            TRAIN_MOVES.labels(kind)

    def check(self) -> None:
        """Raise Unavailable if a look has hung for so long that the process should be restarted."""
        seconds = self.monotonic() - self._looked_at
        if seconds > LONGEST_WORK_SECONDS:
            raise Unavailable(f"the train has hung in one look for {seconds:.0f} s")

    def run(self, stop: threading.Event) -> None:
        """Conduct until `stop` is set."""

        def look() -> None:
            self._looked_at = self.monotonic()
            self.look(stop)

        LookLoop("train", "the train does not move", TRAIN_FAILURES, LOOK_SECONDS).run(look, stop)

    def look(self, stop: threading.Event) -> None:
        """Look at everything once, and make at most one move. Raises MillraceError: the database or an engine is away; nothing is lost."""
        now = self.clock()
        try:
            with self.database.snapshot() as connection:
                seen = standing.look(connection, self.policy, self.slots, now)
            self._tell_slots(seen)
            TRAIN_WITHOUT_SLOT.set(seen.waits_for_slot and bool(seen.slots))
            TRAIN_STAGE.set(float("nan") if seen.train is None else seen.train.stage)
            if not self._tidy(seen, now) and not self._guards(seen, now):
                if seen.train is None:
                    if self._trip is not None:  # an operator, or another replica, ended it
                        self._trip, self._clean_at = None, float("-inf")
                    self._depart(seen, now)
                else:
                    self._conduct(seen, seen.train, now, stop)
        except (StaleWrite, Held) as error:
            # Somebody else moved an arm just now, or holds them.
            log.info("looked at anew", reason=error.message)
        self._clean(now)

    def _tell_slots(self, seen: TrackView) -> None:
        """Log what the engines cannot hold: each missing slot makes the train shorter."""
        slots = seen.slots
        if not slots or slots == self._slots_told:  # without any, no engine is there yet
            return
        self._slots_told = slots
        if seen.waits_for_slot:
            log.warning("no engine has a canary slot", slots=sorted(slots), effect=WAITING_FOR_SLOT)
            return
        missing = [arm for arm in (CANARY, LEARNING, assignments.HOLDOUT) if arm not in slots]
        effect = "versions that pass the gate go live at once" if CANARY in missing else "versions are proven on users"
        log.info("slots of the engines", slots=sorted(slots), missing=missing, effect=effect)

    def _tidy(self, seen: TrackView, now: float) -> bool:
        """Empty the learning arm if its version was revoked, or is older than the live one; True if it was."""
        learning, live = version_of(seen.arms, LEARNING), version_of(seen.arms, LIVE)
        if learning is None or live is None:
            return False
        is_revoked = learning in seen.revoked
        if not is_revoked and (learning >= live or seen.hold is not None):
            return False
        reason = f"v{learning} was revoked" if is_revoked else f"v{live} is live and newer"
        with self.database.transaction() as connection:
            moves.empty(connection, seen.arms, LEARNING, reason)
            if not is_revoked:
                holds.refuse(connection, self.policy, now)
        self._moved("learning arm emptied", reason, learning)
        return True

    def _guards(self, seen: TrackView, now: float) -> bool:
        """Take the version of the learning arm from its users if it harms them; True if it was."""
        move, version = self._guard.look(seen, now), version_of(seen.arms, LEARNING)
        if move is None or version is None:
            return False
        what = "learning version revoked" if move.kind == "revoke" else "learning arm emptied"
        self._moved(what, move.reason, version)
        return True

    def _depart(self, seen: TrackView, now: float) -> None:
        live = version_of(seen.arms, LIVE)
        if live is None or seen.hold is not None:
            return
        self._users_told = self._users_told and not seen.has_users
        if not self.settings.enabled or CANARY not in seen.slots or self._users_told:
            return
        with self.database.snapshot() as connection:
            waiting = self._waiting(connection, live, seen.revoked)
        if not waiting:
            return
        if not seen.has_users:
            self._users_told = True
            log.info("versions wait for users", reason=NO_USERS, versions=waiting)
            return
        settings = self.settings.model_dump(mode="json") | {"slots": sorted(seen.slots)}
        settings["patience_seconds"] = patience_of(self.tasks, self.settings)
        settings[WANTED_LEVEL] = self.settings.level
        settings[repository.PROVIDER_SHARE] = provider_share(seen.arms)
        against = "the provider" if provider_share(seen.arms) else f"v{live}"
        with self.database.snapshot() as connection:
            pace = read_pace(connection, self.policy, self.settings, now)
            ended = repository.read_ended(connection, self.policy, 1)
        changed_to = ended[0].evidence.get(CHANGED_TO) if ended else None
        waiting.sort(key=lambda version: version != changed_to)  # else the newest first
        settings[PACE] = None if pace is None else pace._asdict()
        for version in waiting:
            try:
                with self.database.transaction() as connection:
                    evidence = repository.read_kept(connection, self.policy, version, live, settings)
                    if version == changed_to:
                        evidence[CHANGED_IN] = sorted({*evidence.get(CHANGED_IN, ()), *ended[0].changed_in})
                    settings["level"] = self._level(connection, f"v{version} against {against} at {now:.3f}", now)
                    moves.depart(connection, version, arms=seen.arms, settings=settings, evidence=evidence, now=now)
            except NotFound as error:
                self._without_bytes.add(version)
                log.warning("version cannot depart", version=version, reason=error.message)
                continue
            self._moved("train departed", f"v{version} is proven against {against}", version)
            return

    def _level(self, connection: Connection, name: str, now: float) -> float:
        """What one more train may spend of the year's budget of false verdicts."""
        wanted, per_year = self.settings.level, self.settings.false_verdicts_per_year
        budget = error_budget.TRAINS
        return error_budget.spend(connection, self.policy, budget, name, wanted=wanted, per_year=per_year, now=now)

    def _waiting(
        self, connection: Connection, live: int, revoked: Collection[int], *, above: int | None = None
    ) -> list[int]:
        """Versions that may depart against `live` and are newer than it, or than `above`; the newest first."""
        accepted = repository.read_accepted_above(connection, self.policy, live if above is None else above)
        if not accepted:
            return []
        refused = left_behind(read_live_history(connection, self.policy)) | self._without_bytes
        refused |= repository.read_tried(connection, self.policy, live)
        return [version for version in accepted if version not in refused and version not in revoked]

    def _conduct(self, seen: TrackView, train: Train, now: float, stop: threading.Event) -> None:
        if (ended := ended_by_others(seen, train)) is not None:
            if seen.hold is not None and ended.state != REVOKED and is_on_track(train, seen.arms):
                return  # the canary stays as it is until somebody resumes
            with self.database.transaction() as connection:
                moves.end(connection, train, state=ended.state, reason=ended.reason, now=now)
            self._moved(f"train {ended.state}", ended.reason, train.version, ended.state)
            return
        if self._trip is None or self._trip.train_id != train.id:
            self._better.clear()
            parts = (self.shadow, self._moved, self.clock, self.monotonic)
            self._trip = Trip(train, self.database, self.tasks, *parts)
        self._trip.look(seen, train, now, stop, change=self._change(seen, train))

    def _change(self, seen: TrackView, train: Train) -> TrainMove | None:
        """To the newest waiting version that beats the one on the train; at most once in each stage."""
        if train.stage in train.changed_in or not seen.has_users or not self.settings.enabled:
            return None
        with self.database.snapshot() as connection:
            for version in self._waiting(connection, train.blessed, seen.revoked, above=train.version):
                if version not in self._better:
                    verdict = repository.read_verdict(connection, self.policy, version)
                    self._better[version] = better_by(verdict, train.version)
                says = self._better[version]
                if says is not None and not repository.read_vetoes(connection, version, train.blessed):
                    return TrainMove("change_over", f"v{version} is better by the gate: {says}", version)
        return None

    def _moved(self, what: str, reason: str, version: int, state: str | None = None) -> None:
        self.fault(f"conductor: {what}")
        self.bell.ring(MOVED)
        if what in _COUNTED:
            TRAIN_MOVES.labels(_COUNTED[what]).inc()
        if state is not None:
            self._trip, self._clean_at = None, float("-inf")
        log.info(what, reason=reason, version=version)

    def _clean(self, now: float) -> None:
        """Delete a piece of the answers that nobody needs any more."""
        if self.monotonic() < self._clean_at:
            return
        with self.database.transaction() as connection:
            running = repository.read_running(connection, self.policy)
            needed = {running.version} if running is not None else set[int]()
            arms = assignments.read(connection, self.policy)
            if (live := version_of(arms, LIVE)) is not None:
                needed |= set(self._waiting(connection, live, revocations.read(connection, self.policy)))
            num = repository.forget_answers(
                connection,
                self.policy,
                needed=needed,
                learning=version_of(arms, LEARNING),
                holdout=version_of(arms, assignments.HOLDOUT),
                lift_since=self.lift_since(now),
                limit=_PIECE,
            )
            forget_pairs(connection, self.policy)
            train_points.forget_primaries(connection, self.policy)
        self._clean_at = self.monotonic() + (0.0 if num == _PIECE else _CLEAN_SECONDS)
