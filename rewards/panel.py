"""Who is asked, and when: gates first, because they are cheap; then what costs time or money, side by side.

An answer that a gate refused has the worst reward whatever else is said of it, so nobody slow is asked about it, unless
to watch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from contracts.draws import is_audited
from contracts.records import Score
from contracts.tasks import Task
from rewards.graders import Grader
from rewards.rubric import is_refusal
from rewards.verifiers.check import Answer
from rewards.verifiers.registry import graders_of


class Panel:
    """The graders of one task."""

    def __init__(self, task: Task, others: Sequence[Grader] = (), secret: bytes = b"") -> None:
        """`others`: what comes after the verifiers, the judges. `secret`: as of `is_audited`. Raises InvalidTask."""
        self.graders: list[Grader] = [*graders_of(task), *others]
        self._audit = task.audit
        self._secret = secret

    @property
    def is_slow(self) -> bool:
        """It has somebody to wait for."""
        return any(grader.is_slow for grader in self.graders)

    def grade(self, answers: Sequence[Answer], pool: ThreadPoolExecutor) -> list[tuple[Score, ...]]:
        """The scores of each answer, in the order of `graders`."""
        return self.start(answers, pool)()

    def start(self, answers: Sequence[Answer], pool: ThreadPoolExecutor) -> Callable[[], list[tuple[Score, ...]]]:
        """Ask; what is returned waits for the scores, so that several tasks can be waited for at once."""
        columns: dict[str, list[Score]] = {}
        for grader in self.graders:
            if not grader.is_slow:
                columns[grader.name] = grader.score_all(answers)
        gates = [columns[grader.name] for grader in self.graders if grader.name in columns and grader.role == "gate"]
        refused = {index for column in gates for index, score in enumerate(column) if is_refusal(score)}
        waiting = {
            grader.name: pool.submit(_ask, grader, answers, self._spared(grader, answers, refused))
            for grader in self.graders
            if grader.is_slow
        }

        def scores() -> list[tuple[Score, ...]]:
            found = columns | {name: future.result() for name, future in waiting.items()}
            return list(zip(*(found[grader.name] for grader in self.graders), strict=True)) or [() for _ in answers]

        return scores

    def _spared(self, grader: Grader, answers: Sequence[Answer], refused: set[int]) -> dict[int, str]:
        """Places that a slow grader is not asked about, and why."""
        if self._audit is not None and grader.name == self._audit.judge:
            probability = self._audit.probability
            drawn = {index for index, answer in enumerate(answers) if is_audited(answer.key, probability, self._secret)}
            return {index: "not drawn for the audit" for index in range(len(answers)) if index not in drawn}
        return {} if grader.role == "watch" else dict.fromkeys(refused, "a gate refused the answer")


def _ask(grader: Grader, answers: Sequence[Answer], spared: Mapping[int, str]) -> list[Score]:
    asked = iter(grader.score_all([answer for index, answer in enumerate(answers) if index not in spared]))
    return [grader.skipped(spared[index]) if index in spared else next(asked) for index in range(len(answers))]
