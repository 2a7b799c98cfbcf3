"""The verifiers and judges of every task of a process. Nothing here writes.

In: answers. Out: a score of each grader of their task. Waits: for slow graders, for many answers at once and outside of
any transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from contracts.records import Score
from contracts.tasks import Task
from rewards.episode import UnpackedEpisode, answer_of
from rewards.judges.registry import judges_of, new_http
from rewards.judges.store import JudgeStore, MemoryStore
from rewards.panel import Panel
from rewards.verifiers.check import Answer

_MAX_THREADS = 32
Siblings = Callable[[Collection[str]], Mapping[str, Mapping[int, str]]]
"""Completion ids to the texts of their choices."""


class TaskGraders:
    """The graders of some tasks. It owns threads and connections to judges: close it."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        store: JudgeStore | None = None,
        siblings: Siblings = lambda _: {},
        secret: bytes = b"",
    ) -> None:
        """Build every grader.

        Args:
            tasks: by name.
            store: of the judges' verdicts and costs; by default they are remembered as long as this process lives.
            siblings: finds the other choices of a completion; by default answers have none to be compared with.
            secret: of the draw of audits.

        Raises:
            InvalidTask: a verifier or judge cannot be built.
        """
        self._tasks = tasks
        self._http: httpx.Client | None = new_http() if any(task.judges for task in tasks.values()) else None
        store = store or MemoryStore()
        self._panels = {name: Panel(task, judges_of(task, store, self._http), secret) for name, task in tasks.items()}
        self._compared = {
            name for name, task in tasks.items() if any(judge.protocol == "pairwise" for judge in task.judges)
        }
        self._siblings = siblings
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="grader")

    @property
    def is_slow(self) -> bool:
        """Whether some task has graders to wait for."""
        return any(panel.is_slow for panel in self._panels.values())

    def grade(self, items: Sequence[UnpackedEpisode]) -> list[UnpackedEpisode]:
        """The items with the scores of their task's graders; without any where the task is unknown."""
        scores: dict[int, tuple[Score, ...]] = {}
        places: dict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            places[item.turn.task].append(place)
        waiting = {
            name: self._panels[name].start(
                self._answers(self._tasks[name], [items[place] for place in places[name]]), self._pool
            )
            for name in places.keys() & self._panels.keys()
        }
        for name, found in waiting.items():
            scores |= zip(places[name], found(), strict=True)
        return [item._replace(grader_scores=scores.get(place, ())) for place, item in enumerate(items)]

    def close(self) -> None:
        """Release threads and connections."""
        self._pool.shutdown(cancel_futures=True)
        if self._http is not None:
            self._http.close()

    def _answers(self, task: Task, items: Sequence[UnpackedEpisode]) -> list[Answer]:
        if task.name not in self._compared:
            return [answer_of(item, task) for item in items]
        texts = self._siblings({item.turn.completion_id for item in items})

        def others(item: UnpackedEpisode) -> tuple[str, ...]:
            choices = texts.get(item.turn.completion_id, {})
            return tuple(text for choice, text in sorted(choices.items()) if choice != item.turn.choice)

        return [answer_of(item, task, others(item)) for item in items]
