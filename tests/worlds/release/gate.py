"""A releaser over a real database, with an engine and graders made of tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import select

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, SLOTS
from contracts.errors import MillraceError, VersionNotResident
from contracts.gating import GateAnswer, GateScore, Grade, Sentinel, SentinelFile
from contracts.tables import gate_anchor, verdict
from contracts.tasks import Task
from pipelines.release.asking import SentinelAnswer, SentinelClient
from pipelines.release.releaser import Releaser
from pipelines.release.settings import ReleaseSettings
from pipelines.release.train.standing import TrainSlots
from runtime.database import Database
from runtime.replicas.in_process import LocalBell
from runtime.train_settings import TrainSettings
from tests.worlds.release.arms import point

NUM = 100
SIGNALS = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
TASKS = {
    name: Task.model_validate(
        {"name": name, "signals": SIGNALS, "verifiers": [{"name": "right", "kind": "exact", "role": "watch"}]}
    )
    for name in ("math", "code")
}
STOP = threading.Event()


def a_set(*tasks: str, name: str = "abc", ungated: Mapping[str, str] | None = None) -> SentinelFile:
    items = [
        Sentinel(task, [{"role": "user", "content": str(n)}], {}, n, f"s.jsonl:{n + 1}")
        for task in tasks
        for n in range(NUM)
    ]
    return SentinelFile(tuple(items), name, ungated or {})


class GateWorld:
    """An engine that holds what the arms point at, versions with a quality, and graders that may be away."""

    def __init__(
        self,
        database: Database,
        sentinels: SentinelFile | None = None,
        policy: str = "p",
        *,
        tasks: Mapping[str, Task] = TASKS,
        grade: Grade | None = None,
        texts: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """`grade`: real graders in the place of the table; `texts`: by task, a right and a wrong answer."""
        self.database = database
        self.tasks = tasks
        self.grade = grade or self._grade
        self.texts = texts or dict.fromkeys(tasks, ("right", "wrong"))
        self.policy = policy
        self.sentinels = sentinels if sentinels is not None else a_set("math")
        self.right: dict[int, Mapping[str, int] | int] = {}
        self.fault: Callable[[int], MillraceError | None] = lambda _: None
        self.grader_is_away: Callable[[], bool] = lambda: False
        self.not_finite: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        """Version and newest draw, in order."""
        self.graded: list[list[str]] = []
        self.now = 1000.0
        self.slots = TrainSlots(policy, run="", base="", settings=TrainSettings())
        self.releaser = self.restarted()

    def restarted(self) -> Releaser:
        world = self

        class FakeAsker(SentinelClient):
            def __init__(self) -> None:
                pass

            def ask(
                self, sentinels: SentinelFile, version: int, stop: threading.Event, draws: Mapping[str, int]
            ) -> tuple[SentinelAnswer, ...]:
                del stop
                world.asked.append((version, max(draws.values(), default=-1)))
                if version not in {world.arms().get(arm) for arm in SLOTS}:
                    raise VersionNotResident(f"the engine did not take v{version}")
                if error := world.fault(version):
                    raise error
                return world.answers(sentinels, version)

        self.releaser = Releaser(
            self.database,
            FakeAsker(),
            self.sentinels,
            self.grade,
            tasks=self.tasks,
            policy=self.policy,
            settings=ReleaseSettings(),
            bell=LocalBell(),
            slots=self.slots,
            clock=lambda: self.now,
        )
        return self.releaser

    def answers(self, sentinels: SentinelFile, version: int) -> tuple[SentinelAnswer, ...]:
        quality = self.right.get(version, 0)
        of_task = {task: quality if isinstance(quality, int) else quality[task] for task in sentinels.tasks}
        return tuple(
            SentinelAnswer(
                self.texts[item.task][int(item.messages[0]["content"]) >= of_task[item.task]],
                "stop",
                finite=version not in self.not_finite,
            )
            for item in sentinels.items
        )

    def _grade(self, task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
        del task
        self.graded.append([answer.text for answer in answers])
        if self.grader_is_away():
            return [GateScore(None, "judge: no reply") for _ in answers]
        return [GateScore(float(answer.text == "right")) for answer in answers]

    def point(self, arm: str, version: int | None) -> None:
        point(self.database, self.policy, arm, version)

    def begin(self, right: int = 70) -> None:
        self.right[0] = right
        self.point(LIVE, 0)
        assert self.releaser.look(STOP)

    def offer(self, version: int, right: Mapping[str, int] | int) -> int | None:
        """What is live after a version of that quality was judged."""
        self.right[version] = right
        self.point(CANDIDATE, version)
        assert self.releaser.look(STOP)
        self.releaser.look(STOP)
        return self.arms()[LIVE]

    def verdict(self, version: int) -> Any:
        with self.database.snapshot() as connection:
            return connection.execute(select(verdict).where(verdict.c.version == version)).one_or_none()

    def references(self, version: int, task: str = "math") -> dict[str, int]:
        found = self.verdict(version).details["tasks"][task]["comparisons"]
        return {item["reference"]: item["version"] for item in found}

    def anchors(self) -> list[int]:
        with self.database.snapshot() as connection:
            return list(connection.execute(select(gate_anchor.c.version).order_by(gate_anchor.c.at)).scalars())

    def arms(self) -> dict[str, int | None]:
        with self.database.snapshot() as connection:
            return {name: arm.version for name, arm in assignments.read(connection, self.policy).items()}
