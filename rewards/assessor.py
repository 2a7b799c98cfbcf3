"""What the graders and the signals of an episode make of it: scores, and a verdict. Nothing here writes.

Slow graders are asked for many episodes at once, outside of any transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx
import msgspec

from contracts.clusters import Clusters, words_of
from contracts.draws import is_asked
from contracts.records import Score
from contracts.tasks import Task
from rewards.episode import Opened, answer_of
from rewards.judges.registry import judges_of, new_http
from rewards.judges.store import JudgeStore, MemoryStore
from rewards.panel import Panel
from rewards.rubric import SILENT, Verdict, combine, grade_of, said_of
from rewards.signals.mapping import About, score_signals
from rewards.signals.silence import Expected
from rewards.verifiers.check import Answer

_MAX_THREADS = 32
Siblings = Callable[[Collection[str]], Mapping[str, Mapping[int, str]]]
"""Completion ids to the texts of their choices."""


class Assessed(NamedTuple):
    """An episode with all its scores and what they make."""

    item: Opened
    signals: tuple[Score, ...]
    verdict: Verdict
    cluster: str
    grade: float | None = None
    """What the graders alone make of it; only of a task that gives silence a value from what others said."""
    said: float | None = None
    """What users said, or what came next says for them; likewise."""

    @property
    def is_silent(self) -> bool:
        """It has no reward only because nobody said anything."""
        return self.verdict == SILENT

    @property
    def scores(self) -> tuple[Score, ...]:
        """Of graders, then of signals."""
        return (*self.item.checks, *self.signals)


def no_siblings(completion_ids: Collection[str]) -> Mapping[str, Mapping[int, str]]:
    """Where answers are looked at one by one."""
    del completion_ids
    return {}


class Assessor:
    """The graders of some tasks. It owns threads and connections to judges: close it."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        store: JudgeStore | None = None,
        siblings: Siblings = no_siblings,
        secret: bytes = b"",
    ) -> None:
        """`store`: what judges said and cost, by default for as long as this process. `secret`: of the audit's draw.

        Raises:
            InvalidTask: a verifier or judge cannot be had.
        """
        self._tasks = tasks
        self._http: httpx.Client | None = new_http() if any(task.judges for task in tasks.values()) else None
        store = store or MemoryStore()
        self._panels = {name: Panel(task, judges_of(task, store, self._http), secret) for name, task in tasks.items()}
        self._compared = {
            name for name, task in tasks.items() if any(judge.protocol == "pairwise" for judge in task.judges)
        }
        self._clusters = {name: Clusters(task.curation.topics) for name, task in tasks.items()}
        self._siblings = siblings
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="grader")

    @property
    def is_slow(self) -> bool:
        """Some task has graders to wait for."""
        return any(panel.is_slow for panel in self._panels.values())

    def grade(self, items: Sequence[Opened]) -> list[Opened]:
        """Ask the graders of each item's task."""
        checks: dict[int, tuple[Score, ...]] = {}
        places: dict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            places[item.turn.task].append(place)
        waiting = {
            name: self._panels[name].start(
                self._answers(self._tasks[name], [items[place] for place in places[name]]), self._pool
            )
            for name in places.keys() & self._panels.keys()
        }
        for name, scores in waiting.items():
            checks |= zip(places[name], scores(), strict=True)
        return [item._replace(checks=checks.get(place, ())) for place, item in enumerate(items)]

    def assess(self, item: Opened) -> Assessed:
        """Combine what the graders said with what users did."""
        task = self._tasks[item.turn.task]
        was_asked = is_asked(item.turn.completion_id, item.turn.ask_probability)
        signals = score_signals(task, About(item.body.text, item.turn.finished_at, was_asked), item.episode.signals)
        cluster = self._clusters[task.name].of(words_of(item.body.messages))
        graders = self._panels[task.name].graders
        verdict = combine(task, graders, item.checks, signals)
        found = Assessed(item, tuple(signals), verdict, cluster)
        if task.silence != "expected":
            return found
        judged = [score for grader, score in zip(graders, item.checks, strict=True) if grader.role == "signal"]
        said = said_of(task, signals, judged)
        return found._replace(
            grade=grade_of(task, graders, item.checks), said=said if isinstance(said, float) else None
        )

    def imputed(self, assessed: Assessed, expected: Expected) -> tuple[Assessed, Verdict]:
        """The answer and its verdict with what others said in place of a word that did not come, or does not count."""
        task = self._tasks[assessed.item.turn.task]
        graders = self._panels[task.name].graders
        verdict = combine(task, graders, assessed.item.checks, [], expected=expected.value)
        instead = Score(
            name="silence",
            grader=f"signal/expected/1#{task.hash}",
            value=expected.value,
            reason=expected.in_words(),
        )
        unheard = (msgspec.structs.replace(score, weight=0.0) for score in assessed.signals)
        return assessed._replace(signals=(*unheard, instead)), verdict

    def unheard(self, assessed: Assessed, reason: str) -> Verdict:
        """The verdict where the vote that decided does not count.

        None, or what the graders alone make of it if the task lets them carry silence: a vote that is refused is none.
        """
        task = self._tasks[assessed.item.turn.task]
        none = Verdict(None, "unlabelled", "none", reason)
        if task.silence != "renormalise":
            return none
        graders = self._panels[task.name].graders
        verdict = combine(task, graders, assessed.item.checks, [], has_signals=False)
        return none if verdict.reward is None else verdict

    def close(self) -> None:
        """Let go of threads and connections."""
        self._pool.shutdown(cancel_futures=True)
        if self._http is not None:
            self._http.close()

    def _answers(self, task: Task, items: Sequence[Opened]) -> list[Answer]:
        if task.name not in self._compared:
            return [answer_of(item, task) for item in items]
        texts = self._siblings({item.turn.completion_id for item in items})
        return [
            answer_of(
                item,
                task,
                tuple(
                    text
                    for choice, text in sorted(texts.get(item.turn.completion_id, {}).items())
                    if choice != item.turn.choice
                ),
            )
            for item in items
        ]
