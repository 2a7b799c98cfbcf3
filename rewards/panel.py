"""The graders of each task, and the order in which they are asked: fast ones first, then slow ones in parallel. Nothing here writes.

In: answers. Out: a score of each grader of their task. Waits: for slow graders, for many answers at once and outside of any
transaction. They are not asked about an answer that a fast gate refused, unless they only watch: it earns the worst reward anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from contracts.draws import is_audited
from contracts.errors import InvalidTask
from contracts.records import Score
from contracts.tasks import Task
from rewards.episode import UnpackedEpisode, answer_of
from rewards.grader import Grader, each
from rewards.judges.budget import JudgeStore, MemoryStore
from rewards.judges.registry import judges_of, new_http
from rewards.rubric import is_refusal
from rewards.verifiers.check import Answer, BatchVerifier, Builder, Context, Verifier
from rewards.verifiers.registry import kinds, load_kind


class Panel:
    """The graders of one task."""

    def __init__(self, task: Task, judges: Sequence[Grader] = (), secret: bytes = b"") -> None:
        """`judges` come after the verifiers. `secret`: see `is_audited`. Raises InvalidTask."""
        self.graders: list[Grader] = [*graders_of(task), *judges]
        self._audit = task.audit
        self._secret = secret

    @property
    def is_slow(self) -> bool:
        """Whether some grader is slow."""
        return any(grader.is_slow for grader in self.graders)

    def grade(self, answers: Sequence[Answer], pool: ThreadPoolExecutor) -> list[tuple[Score, ...]]:
        """The scores of each answer, in the order of `graders`."""
        return self.start(answers, pool)()

    def start(self, answers: Sequence[Answer], pool: ThreadPoolExecutor) -> Callable[[], list[tuple[Score, ...]]]:
        """Ask the graders. The function returned waits for the scores, so that several tasks can be graded in parallel."""
        columns: dict[str, list[Score]] = {}
        for grader in self.graders:
            if not grader.is_slow:
                columns[grader.name] = grader.score_all(answers)
        gates = [columns[grader.name] for grader in self.graders if grader.name in columns and grader.role == "gate"]
        refused = {index for column in gates for index, score in enumerate(column) if is_refusal(score)}
        waiting = {
            grader.name: pool.submit(_ask, grader, answers, self._skipped(grader, answers, refused))
            for grader in self.graders
            if grader.is_slow
        }

        def scores() -> list[tuple[Score, ...]]:
            found = columns | {name: future.result() for name, future in waiting.items()}
            return list(zip(*(found[grader.name] for grader in self.graders), strict=True)) or [() for _ in answers]

        return scores

    def _skipped(self, grader: Grader, answers: Sequence[Answer], refused: set[int]) -> dict[int, str]:
        imported = {index for index, answer in enumerate(answers) if answer.is_imported and not grader.is_for_imported}
        return self._left_out(grader, answers, refused) | dict.fromkeys(imported, "imported")

    def _left_out(self, grader: Grader, answers: Sequence[Answer], refused: set[int]) -> dict[int, str]:
        if self._audit is not None and grader.name == self._audit.judge:
            probability = self._audit.probability
            drawn = {index for index, answer in enumerate(answers) if is_audited(answer.key, probability, self._secret)}
            return {index: "not drawn for the audit" for index in range(len(answers)) if index not in drawn}
        return {} if grader.role == "watch" else dict.fromkeys(refused, "a gate refused the answer")


def graders_of(task: Task, names: Collection[str] | None = None) -> list[Grader]:
    """The verifiers of a task; only those of `names`, if it is given. Raises InvalidTask: unknown kind, or invalid config; with file, line and what to do."""
    graders = []
    for index, rule in enumerate(task.verifiers):
        if names is not None and rule.name not in names and rule.kind in kinds():
            continue
        try:
            kind, module = load_kind(rule.kind)
        except InvalidTask as error:
            place = task.where("verifiers", index, "kind")
            raise InvalidTask(f"{place}: verifier {rule.name!r} kind: {error.message}") from error
        built = built_by(module.build, task, index)
        label = f"{rule.kind}/{module.VERSION}#{task.hash}"
        check_all = built.check_all if isinstance(built, BatchVerifier) else each(built)
        graders.append(Grader.of(rule, label, check_all, is_slow=kind.is_slow))
    return graders


def built_by(builder: Builder, task: Task, index: int) -> Verifier | BatchVerifier:
    """One verifier of a task. Raises InvalidTask, like `graders_of`."""
    rule = task.verifiers[index]
    try:
        return builder(rule.config, Context(rule.deadline_seconds, task.folder))
    except InvalidTask as error:
        field = [int(part) if part.isdigit() else part for part in (error.param or "").split(".") if part]
        place = task.where("verifiers", index, "config", *field)
        named = f" config.{error.param}" if error.param else ""
        raise InvalidTask(f"{place}: verifier {rule.name!r} ({rule.kind}){named}: {error.message}") from error


def _ask(grader: Grader, answers: Sequence[Answer], skipped: Mapping[int, str]) -> list[Score]:
    asked = iter(grader.score_all([answer for index, answer in enumerate(answers) if index not in skipped]))
    return [grader.skipped(skipped[index]) if index in skipped else next(asked) for index in range(len(answers))]


_MAX_THREADS = 32
Siblings = Callable[[Collection[str]], Mapping[str, Mapping[int, str]]]
"""Completion ids to the texts of their choices."""


class TaskGraders:
    """The graders of some tasks. It owns threads and connections to judges: close it."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        store: JudgeStore | None = None,
        siblings: Siblings | None = None,
        secret: bytes = b"",
    ) -> None:
        """Build every grader. Raises InvalidTask if a verifier or judge cannot be built.

        By default verdicts and costs of judges are remembered as long as this process lives, and answers have no siblings to be
        compared with. `secret`: of the draw of audits.
        """
        self._tasks = tasks
        self._http: httpx.Client | None = new_http() if any(task.judges for task in tasks.values()) else None
        store = store or MemoryStore()
        self._panels = {name: Panel(task, judges_of(task, store, self._http), secret) for name, task in tasks.items()}
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
        waiting = []
        for name in places.keys() & self._panels.keys():
            answers = self._answers(self._tasks[name], [items[place] for place in places[name]])
            waiting.append((places[name], self._panels[name].start(answers, self._pool)))
        for asked, found in waiting:
            scores |= zip(asked, found(), strict=True)
        return [item._replace(grader_scores=scores.get(place, ())) for place, item in enumerate(items)]

    def close(self) -> None:
        """Release threads and connections."""
        self._pool.shutdown(cancel_futures=True)
        if self._http is not None:
            self._http.close()

    def _answers(self, task: Task, items: Sequence[UnpackedEpisode]) -> list[Answer]:
        texts: Mapping[str, Mapping[int, str]] = {}
        if self._siblings is not None and any(judge.protocol == "pairwise" for judge in task.judges):
            texts = self._siblings({item.turn.completion_id for item in items})
        choices = [sorted(texts.get(item.turn.completion_id, {}).items()) for item in items]
        return [
            answer_of(item, task, tuple(text for choice, text in known if choice != item.turn.choice))
            for item, known in zip(items, choices, strict=True)
        ]
