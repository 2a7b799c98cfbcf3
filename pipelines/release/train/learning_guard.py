"""Guards the users of the learning arm: they get each version that passed the gate at once, before any shadow or stage proved it.

In: rows of `train_answer`, of the learning arm and of four times as many units of live. Out: at most one move: a version that is worse is
revoked, on doubt the arm is emptied. Waits for: the database.

Only fast facts are compared, as a train compares them (refusals, errors, cut off, empty, misshapen, broken calls, lengths): rewards come
later. So the learning arm's share is all that ever sees such a version, and it leaves within a minute where a hundred people come in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from contracts import assignments, error_budget, holds
from contracts.arms import is_control, read_arm_secret
from contracts.assignments import LEARNING, LIVE, provider_share
from contracts.errors import StaleWrite
from contracts.rejection import revoke_unproven
from pipelines.release.train import moves, repository
from pipelines.release.train.answers import CANARY, AnswerRow, TaskRule
from pipelines.release.train.assess import ALL_TASKS
from pipelines.release.train.gathering import TrainEvidence
from pipelines.release.train.reading.sampling import LEARNING_RATIO, LEARNING_ROWS
from pipelines.release.train.rules import TrainMove, decide_by_fast_facts
from pipelines.release.train.standing import TrackView, version_of
from pipelines.release.train.strata import Standing
from runtime.database import Database
from runtime.train_settings import TrainSettings

_LOOK_SECONDS = 2.0
_STRATUM_SECONDS = 300.0
"""The canary's share, which live's answers depend on, is not known of an answer of the learning arm: times are compared more narrowly."""
_WHERE = Standing(stage=0, stage_at=0.0, started_at=0.0, state="canary")


class Guarded(NamedTuple):
    """What is compared. Another version in either arm begins a new comparison."""

    version: int
    blessed: int
    share: float


@dataclass(eq=False)
class LearningGuard:
    """See the module. `monotonic`: seconds for timers."""

    database: Database
    _: KW_ONLY
    policy: str
    tasks: Mapping[str, TaskRule]
    settings: TrainSettings
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # Without their rewards.
        self._tasks = {name: rule._replace(has_primary=False) for name, rule in self.tasks.items()}
        primary = {name for name, rule in self.tasks.items() if rule.has_primary}
        self._with_primary = primary | ({ALL_TASKS} if primary else set())
        self._secret = b""
        self._guarded: Guarded | None = None
        self._evidence: TrainEvidence | None = None
        self._look_at = float("-inf")

    def look(self, seen: TrackView, now: float) -> TrainMove | None:
        """The move that was made; None if the version stays.

        Raises Held, StaleWrite: somebody else moved or holds the arms; nothing is changed.
        """
        guarded = guarded_of(seen)
        if guarded is None:
            self._guarded = self._evidence = None
            return None
        if guarded != self._guarded or self._evidence is None:
            self._evidence = self._begin(guarded, now)
            self._guarded = guarded
        elif self.monotonic() < self._look_at:
            return None
        self._look_at = self.monotonic() + _LOOK_SECONDS
        if len(self._evidence) < 2 * LEARNING_ROWS:
            with self.database.snapshot() as connection:
                self._evidence.read(connection, now)
        move = decide_by_fast_facts(self._evidence.assess(now, _WHERE), self._with_primary)
        if move.kind == "stay" or seen.hold is not None:
            return None
        self._make(guarded, move, now)
        return move

    def _begin(self, guarded: Guarded, now: float) -> TrainEvidence:
        changes = {
            "stages": (guarded.share,),
            "control_ratio": LEARNING_RATIO,
            "level": self._spend(guarded, now),
            "shadow_prompts": 0,
            "stratum_seconds": min(_STRATUM_SECONDS, self.settings.stratum_seconds),
        }

        def read(connection: Connection, since_ms: int) -> list[tuple[AnswerRow, int]]:
            rows = repository.read_learning(connection, self.policy, guarded.version, guarded.blessed, since_ms)
            compared = ((row, changed) for row, changed in rows if _is_compared(row, guarded, self._secret))
            return [(_as_compared(row, guarded), changed) for row, changed in compared]

        return TrainEvidence(read, self._tasks, self.settings.model_copy(update=changes), self.monotonic)

    def _spend(self, guarded: Guarded, now: float) -> float:
        """The level of this comparison: less than `learning_level` if little is left of the year's budget."""
        name = f"v{guarded.version} against v{guarded.blessed} at {guarded.share:g}"
        wanted, per_year = self.settings.learning_level, self.settings.false_verdicts_per_year
        with self.database.transaction() as connection:
            self._secret = read_arm_secret(connection)
            budget = error_budget.LEARNING
            return error_budget.spend(connection, self.policy, budget, name, wanted=wanted, per_year=per_year, now=now)

    def _make(self, guarded: Guarded, move: TrainMove, now: float) -> None:
        reason = f"in the learning arm, before its train proved it: {move.reason}"
        with self.database.transaction() as connection:
            arms = assignments.lock(connection, self.policy)
            if (arms[LEARNING].version, arms[LIVE].version) != (guarded.version, guarded.blessed):
                raise StaleWrite(f"another writer moved the arm {LEARNING}; it is looked at anew")
            if move.kind == "revoke":
                revoke_unproven(connection, self.policy, guarded.version, writer=moves.WRITER, reason=reason)
            else:
                moves.empty(connection, arms, LEARNING, reason)
            holds.refuse(connection, self.policy, now)


def guarded_of(seen: TrackView) -> Guarded | None:
    """The version that the learning arm gives to users; None if there is none, or everybody has it."""
    learning, live = version_of(seen.arms, LEARNING), version_of(seen.arms, LIVE)
    if learning is None or live is None or learning <= live or learning in seen.revoked or provider_share(seen.arms):
        return None
    share = seen.arms[LEARNING].share
    return Guarded(learning, live, share) if share > 0.0 else None


def _is_compared(row: AnswerRow, guarded: Guarded, secret: bytes) -> bool:
    """Of live, always the same units, whatever else they are compared with."""
    return row.arm == LEARNING or is_control(row.unit, guarded.version, guarded.share, LEARNING_RATIO, secret)


def _as_compared(row: AnswerRow, guarded: Guarded) -> AnswerRow:
    """A row as the statistics of a train take it: the learning arm is the canary."""
    is_learning = row.arm == LEARNING
    return row._replace(
        arm=CANARY if is_learning else LIVE,
        probability=guarded.share if is_learning else 1.0 - guarded.share,
        reward=None,
        status="",
    )
