"""A conductor over a real database, with a clock, engines and users made of tables."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import delete, insert, select

from contracts import assignments
from contracts.arms import is_control, read_arm_secret
from contracts.assignments import LIVE, SLOTS, Assignment
from contracts.tables import (
    alarm,
    assignment_change,
    engine_replica,
    generation,
    train,
    train_answer,
    verdict,
    version_claim,
)
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.conductor import Conductor
from pipelines.release.train.reading.sampling import LEARNING_RATIO
from pipelines.release.train.repository import Train
from pipelines.release.train.sequences import expected_share
from pipelines.release.train.standing import TrainSlots
from pipelines.release.train.trip import Shadow
from runtime.database import Database
from runtime.replicas.in_process import LocalBell
from runtime.train_settings import TrainSettings
from tests.worlds.release.arms import point

POLICY = "p"
STOP = threading.Event()
NOTHING: Mapping[str, Any] = {}
AGE = 5.0
TASKS = {"chat": TaskRule(has_primary=True, age_seconds=AGE)}
SETTINGS = TrainSettings(
    stages=(0.05, 0.5),
    stage_seconds=10.0,
    stage_units=10,
    shadow_prompts=0,
    silence_seconds=60.0,
    patience_seconds=3_600.0,
    margin=0.1,
    guardrail_margin=0.2,
    tuned_units=200,
    level=0.01,
)

ASKED = {
    "completion_id": "chatcmpl-later", "choice": 0, "partition": 0, "policy": POLICY, "task": "chat", "purpose": "user", "arm": LIVE,
    "version": 0, "revision": 0, "state": "pending", "state_reason": "", "state_writer": "", "state_epoch": 0,
    "state_revision": 0, "record": b"", "created_at": 1e11, "joined_at": 1e11,
}  # fmt: skip
"""An answer of a user that was always given just now; its record cannot be read."""


class Killed(Exception):
    """A process died at a fault point."""


class Behaviour(NamedTuple):
    """What the answers of a version are like: means of the reward and of fast facts."""

    reward: float = 0.7
    truncated: float = 0.02
    failed: float = 0.0


class TrackWorld:
    """See the module. Time passes in `pass_time` only."""

    def __init__(
        self, database: Database, settings: TrainSettings = SETTINGS, tasks: Mapping[str, TaskRule] = TASKS
    ) -> None:
        self.database = database
        self.settings = settings
        self.tasks = tasks
        self.wall, self.tick = 1_700_000_000.0, 5_000.0
        self.slots: Mapping[str, int | None] | None = None
        """What the engine holds; None: whatever the arms say."""
        self.declared: tuple[str, ...] = SLOTS
        self.shadow: Shadow | None = None
        self.kill_at: str | None = None
        self.num_answers = 0
        self.chance = random.Random(1)
        self.lacks: set[int] = set()
        """Versions whose answers of the learning arm do not say whether they were cut off."""
        self.lengths: dict[int, float] = {}
        """Logarithms of the tokens of these answers."""
        self.num_others = 0
        """Engines without a slot for the canary."""
        self.behaviour: dict[int, Behaviour] = {}
        self.people(come=True)
        self.conductor = self.restarted()

    def restarted(self) -> Conductor:
        """A new conductor, as after a restart of the process."""
        self.conductor = self.another()
        return self.conductor

    def another(self) -> Conductor:
        """A conductor of another process."""
        return Conductor(
            self.database,
            policy=POLICY,
            settings=self.settings,
            tasks=self.tasks,
            slots=TrainSlots(POLICY, run="", base="", settings=self.settings, clock=lambda: self.wall),
            bell=LocalBell(),
            lift_since=lambda now: now,
            shadow=self.shadow,
            clock=lambda: self.wall,
            monotonic=lambda: self.tick,
            fault=self._fault,
        )

    def _fault(self, place: str) -> None:
        if place == self.kill_at:
            self.kill_at = None
            raise Killed(place)

    def look(self, num: int = 1, *, seconds: float = 1.0) -> None:
        """Let the conductor look, with time in between."""
        for _ in range(num):
            self.pass_time(seconds)
            self.announce()
            self.conductor.look(STOP)

    def pass_time(self, seconds: float) -> None:
        """Both clocks go on."""
        self.wall, self.tick = self.wall + seconds, self.tick + seconds

    def people(self, *, come: bool) -> None:
        """Whether anybody asks from now on."""
        with self.database.transaction() as connection:
            connection.execute(delete(generation).where(generation.c.completion_id == ASKED["completion_id"]))
            if come:
                connection.execute(insert(generation).values(**ASKED))

    def announce(self) -> None:
        """The engine holds what the arms say, and its row is fresh."""
        arms = self.arms()
        held = self.slots
        if held is None:
            held = {arm: arms[arm].version if arm in arms else None for arm in self.declared}
        row = {
            "policy": POLICY, "name": "e", "url": "http://e", "kind": "millrace", "region": "local", "status": "serving",
            "slots": dict(held), "abilities": [], "instance": "i", "engine": "e", "dtype": "float32", "seen_at": self.wall,
            "run": "", "base": "", "problems": {},
        }  # fmt: skip
        with self.database.transaction() as connection:
            connection.execute(delete(engine_replica))
            connection.execute(insert(engine_replica).values(**row))
            for number in range(self.num_others):
                other = row | {"name": f"other {number}", "slots": {LIVE: held.get(LIVE)}}
                connection.execute(insert(engine_replica).values(**other))

    def point(self, arm: str, version: int | None, share: float = 0.0) -> None:
        """Move an arm, as an operator or the gate does."""
        point(self.database, POLICY, arm, version, share=1.0 if arm == LIVE else share)

    def accept(self, *versions: int, parent: int | None = None, details: Mapping[str, Any] = NOTHING) -> None:
        """The gate accepted versions, each the child of the one before. `details`: of the verdict."""
        with self.database.transaction() as connection:
            for version in versions:
                row = {"policy": POLICY, "version": version, "accepted": True, "reason": "", "at": self.wall}
                connection.execute(insert(verdict).values(**row, details=dict(details)))
                claim = {"policy": POLICY, "version": version, "epoch": 1, "claimed_at": 0.0}
                claim["parent"] = version - 1 if parent is None else parent
                connection.execute(insert(version_claim).values(**claim))

    def alarm(self, version: int, *, vetoes: bool | None = True) -> None:
        """A behaviour monitor raised an alarm about a version. `vetoes` None: as an older release wrote it."""
        details = {"words": "openings that flatter", "mean": 0.31, "num": 400, "test": "step"}
        details |= {} if vetoes is None else {"vetoes": vetoes}
        row = {
            "task": "chat",
            "name": "flatters",
            "version": version,
            "cluster": "",
            "at": self.wall,
            "details": details,
        }
        with self.database.transaction() as connection:
            connection.execute(insert(alarm).values(**row))

    def begin(self, *accepted: int) -> None:
        """The base is live, and versions wait."""
        self.point(LIVE, 0)
        self.accept(*accepted)

    def answer(
        self, num_canary: int = 20, num_live: int | None = None, *, age: float = 30.0, arms: str = "both"
    ) -> None:
        """Users get answers and reward them: rows as the log worker writes them. `age`: of the answers, in seconds.

        `num_live` None: as many as the draw gives.
        """
        held = self.running()
        if held is None or held.stage < 0:
            return
        share = held.settings["stages"][held.stage]
        other, theirs, rest = (
            ("provider", -1, held.provider_share) if held.provider_share else ("live", held.blessed, 1.0)
        )
        if num_live is None:
            num_live = round(num_canary / expected_share(share, self.settings.control_ratio, rest)) - num_canary
        rows = []
        for arm, version, num in (("canary", held.version, num_canary), (other, theirs, num_live)):
            if arms in {"both", arm}:
                probability = share if arm == "canary" else (1.0 - share) * rest
                rows += self._rows(held, arm, version, [probability] * num, age)
        # Together: whoever looks in between would see one arm without the other.
        with self.database.transaction() as connection:
            connection.execute(insert(train_answer), rows)

    def answer_learning(self, num: int, *, delay: float = 1.0) -> None:
        """Users of the learning arm get answers, and more of those of live that it is compared with. `delay`: until they are read."""
        arms = self.arms()
        learning, live = arms["learning"], arms[LIVE]
        if learning.version is None or live.version is None:
            return
        with self.database.snapshot() as connection:
            secret = read_arm_secret(connection)
        for arm, version in (("learning", learning.version), ("control", live.version)):
            units = list[str]()
            while len(units) < (num if arm == "learning" else round(num * LEARNING_RATIO)):
                self.num_answers += 1
                unit = f"u{self.num_answers}"
                if arm == "learning" or is_control(unit, learning.version, learning.share, LEARNING_RATIO, secret):
                    units.append(unit)
            self._put(arm, version, learning.version, units, delay)

    def _put(self, arm: str, version: int, compared_with: int, units: list[str], delay: float) -> None:
        """Rows of fast facts alone, by chance."""
        like, at = self.behaviour.get(version, Behaviour()), self.wall - delay
        rows = [
            {
                "key": f"{arm}-{unit}", "policy": POLICY, "arm": arm, "version": version, "compared_with": compared_with,
                "task": "chat", "unit": unit, "unit_kind": "user", "cluster": "", "sampling": "s", "probability": 0.05, "at": at,
                "metrics": {"errors": 0.0, "tokens": self.lengths.get(version, 4.0) + self.chance.gauss(0.0, 0.2)}
                | ({} if version in self.lacks else {"truncated": float(self.chance.random() < like.truncated)}),
                "reward": None, "status": "", "scored_at": None, "changed": int(self.wall * 1000),
            }
            for unit in units
        ]  # fmt: skip
        with self.database.transaction() as connection:
            connection.execute(insert(train_answer), rows)

    def _rows(
        self, held: Train, arm: str, version: int, probabilities: list[float], age: float
    ) -> list[dict[str, Any]]:
        like, rows = self.behaviour.get(version, Behaviour()), []
        for probability in probabilities:
            self.num_answers += 1
            # A sequence that fills [0, 1) evenly, so that means are what they should be.
            place = self.num_answers * 0.6180339887498949 % 1.0
            at = self.wall - age
            rows.append(
                {
                    "key": f"k{self.num_answers:07d}", "policy": POLICY, "arm": arm, "version": version,
                    "compared_with": held.version, "task": "chat", "unit": f"u{self.num_answers}", "unit_kind": "user",
                    "cluster": "", "sampling": "t" if arm == "provider" else "s", "probability": probability, "at": at,
                    "metrics": {"truncated": float(place < like.truncated), "errors": float(place < like.failed), "heard": 1.0},
                    "reward": float(place < like.reward), "status": "scored", "scored_at": at + 1.0,
                    "changed": int(self.wall * 1000),
                }
            )  # fmt: skip
        return rows

    def run(self, looks: int, *, num_canary: int = 20, num_live: int | None = None) -> None:
        """Looks with users in between, until the track is free."""
        for _ in range(looks):
            self.look()
            if self.running() is None:
                return
            self.answer(num_canary, num_live, age=AGE + 1.0)

    def until(self, done: Callable[[], bool], *, looks: int = 400) -> None:
        """Looks with users in between, until something is so."""
        for _ in range(looks):
            if done():
                return
            self.look()
            self.answer(age=AGE + 1.0)
        raise AssertionError(self.trains())

    def running(self) -> Train | None:
        """The train on the track."""
        return next((held for held in self.trains() if held.ended_at is None), None)

    def on_track(self) -> Train:
        """The train on the track, which there is."""
        found = self.running()
        assert found is not None
        return found

    def trains(self) -> list[Train]:
        """All of them, in order."""
        with self.database.snapshot() as connection:
            return [Train(**row) for row in connection.execute(select(train).order_by(train.c.id)).mappings()]

    def arms(self) -> dict[str, Assignment]:
        """As they are."""
        with self.database.snapshot() as connection:
            return assignments.read(connection, POLICY)

    def versions(self) -> dict[str, int | None]:
        """Arm to version."""
        return {name: arm.version for name, arm in self.arms().items()}

    def changes(self, arm: str) -> list[Any]:
        """Every move of an arm, in order."""
        columns = assignment_change.c
        statement = select(columns.version, columns.share, columns.at).where(columns.arm == arm).order_by(columns.epoch)
        with self.database.snapshot() as connection:
            return list(connection.execute(statement).all())

    def count(self) -> int:
        """Answers in the table."""
        with self.database.snapshot() as connection:
            return len(connection.execute(select(train_answer.c.key)).all())
