"""The shadow of a train: both versions answer recent prompts of users, and no user sees it.

    generation ─prompts─▶ both versions, same seed, as background requests ─▶ fast marks, graders without reference ─▶ paired tests

In: a version and the blessed one. Out: a refusal with a reason, or what it saw. Waits: until the engine has loaded the version; for
answers, which wait behind those of users; for graders. It changes nothing: a process that is killed begins again. Answers that were given
are remembered until the shadow has ended, so a retry asks only for the others.

Nothing is logged, trained on or counted as a user's: the requests say so (`x-millrace-purpose: shadow`, `store: false`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import structlog

from contracts.errors import Unavailable
from contracts.gating import GateAnswer, Grade, MarkAnswer, SentinelFile
from contracts.records import FinishReason, GenerationBody
from contracts.tasks import Task
from pipelines.release.asking import LATE, REFUSED, BadVersion, SentinelAnswer, SentinelClient
from pipelines.release.train.gathering import settings_of
from pipelines.release.train.repository import Train
from pipelines.release.train.shadow.comparing import GRADED, ShadowComparison, compare_marks, sees
from pipelines.release.train.shadow.repository import ShadowPrompt, read_prompts
from pipelines.release.train.trip import ShadowResult
from runtime.database import Database

EMPTY: Mapping[str, int] = MappingProxyType({})
_AT_ONCE = 64
"""Prompts that are asked before the next ones."""
_MOST_LATE = 0.25
"""If a larger share of the live version's answers comes too late, the engines are too busy for a shadow now."""

log = structlog.get_logger()


class PairedShadow:
    """See the module. `grade`: graders that need no reference; `graded`: the tasks that have some; `clock`: UTC epoch seconds."""

    def __init__(
        self,
        database: Database,
        client: SentinelClient,
        mark: MarkAnswer,
        grade: Grade,
        *,
        policy: str,
        tasks: Mapping[str, Task],
        graded: frozenset[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._client = client
        self._mark = mark
        self._grade = grade
        self._policy = policy
        self._tasks = tasks
        self._graded = graded
        self._clock = clock
        self._versions = (-1, -1)
        self._prompts: list[ShadowPrompt] = []
        self._answers: dict[int, list[SentinelAnswer]] = {}

    def __call__(self, train: Train, stop: threading.Event) -> ShadowResult:
        """Compare both versions of a train, by its settings.

        Raises:
            VersionNotResident: no engine loaded one of the versions within the patience.
            Unavailable: too few answers came in time, or `stop` was set. It may be called again.
        """
        settings = settings_of(train)
        version, blessed, wanted = train.version, train.blessed, settings.shadow_prompts
        if self._versions != (version, blessed):
            with self._database.snapshot() as connection:
                self._prompts = read_prompts(connection, self._policy, wanted, self._tasks.keys())
            self._versions, self._answers = (version, blessed), {version: [], blessed: []}
        if not self._prompts:
            return self._found("no shadow: no prompt of a user was logged yet", wanted)
        try:
            self._ask(version, blessed, stop)
        except BadVersion as error:
            return self._found(error.message, wanted, refused=True)
        result = self._judge(version, blessed, wanted, settings.level)
        self._versions = (-1, -1)
        return result

    def _ask(self, version: int, blessed: int, stop: threading.Event) -> None:
        for start in range(0, len(self._prompts), _AT_ONCE):
            items = tuple(prompt.question for prompt in self._prompts[start : start + _AT_ONCE])
            questions = SentinelFile(items, "", {})
            for number in (version, blessed):
                if len(self._answers[number]) == start:
                    draws = dict.fromkeys(questions.tasks, 0)
                    self._answers[number] += self._client.ask(questions, number, stop, draws)
            late = sum(answer.finish_reason == LATE for answer in self._answers[blessed][start : start + len(items)])
            if late > _MOST_LATE * len(items):
                for answers in self._answers.values():
                    del answers[start:]
                raise Unavailable(f"{late} of {len(items)} answers of the live version, v{blessed}, came too late")

    def _judge(self, version: int, blessed: int, wanted: int, level: float) -> ShadowResult:
        left_out = Counter[str]()
        kept: list[int] = []
        for place in range(len(self._prompts)):
            pair = [self._answers[number][place] for number in (version, blessed)]
            if any(answer.finish_reason == REFUSED for answer in pair):
                left_out["refused by the endpoint"] += 1
            else:
                kept.append(place)
        if any(not self._answers[version][place].finite for place in kept):
            return self._found("log-probs are not finite", wanted, left_out=left_out, refused=True)
        marks = {
            number: [self._marks(place, self._answers[number][place]) for place in kept] for number in self._versions
        }
        left_out += self._add_grades(marks, kept)
        compared = compare_marks(marks[version], marks[blessed], level)
        return self._told(wanted, kept, compared, left_out)

    def _marks(self, place: int, answer: SentinelAnswer) -> dict[str, float]:
        if answer.finish_reason == LATE:
            return {LATE: 1.0}
        question = self._prompts[place].question
        body = GenerationBody(
            messages=question.messages,
            text=answer.text,
            prompt_ids=b"",
            completion_ids=b"",
            logprobs=b"",
            metadata=dict(question.metadata),
        )
        reason: FinishReason = "length" if answer.finish_reason == "length" else "stop"
        return {LATE: 0.0, "truncated": float(reason == "length"), **self._mark(question.task, body, reason)}

    def _add_grades(self, marks: Mapping[int, Sequence[dict[str, float]]], kept: Sequence[int]) -> Counter[str]:
        """Grade all answers of a task as one blind batch: in random order, equal answers once. Returns what was left out."""
        left_out = Counter[str]()
        for task in self._graded:
            places = [row for row, place in enumerate(kept) if self._prompts[place].question.task == task]
            said = {
                (row, number): (kept[row], self._answers[number][kept[row]])
                for row in places
                for number in self._versions
                if self._answers[number][kept[row]].finish_reason != LATE
            }
            batch = sorted({(place, answer.text, answer.finish_reason) for place, answer in said.values()})
            random.shuffle(batch)
            scores = self._grade(task, [self._answered(*item) for item in batch])
            if len(scores) != len(batch):
                raise Unavailable(f"the graders of task {task!r} gave {len(scores)} scores for {len(batch)} answers")
            values = {item: score.value for item, score in zip(batch, scores, strict=True)}
            for (row, number), (place, answer) in said.items():
                value = values[place, answer.text, answer.finish_reason]
                if value is None:
                    left_out["not graded"] += 1
                else:
                    marks[number][row][GRADED] = value
        return left_out

    def _answered(self, place: int, text: str, finish_reason: str) -> GateAnswer:
        return self._prompts[place].question.answered(text, finish_reason)

    def _told(
        self, wanted: int, kept: Sequence[int], compared: Sequence[ShadowComparison], left_out: Mapping[str, int]
    ) -> ShadowResult:
        _, blessed = self._versions
        asked = f"{len(kept)} prompts of {len({self._prompts[place].unit for place in kept})} people"
        if worse := [item for item in compared if item.is_worse]:
            says = f"worse than v{blessed} on {asked}: {'; '.join(item.words for item in worse)}"
            found = self._found(says, wanted, compared, left_out, refused=True)
            return found._replace(blames_version=any(item.name != LATE for item in worse))
        few = f", of {wanted} wanted: there are no more" if len(self._prompts) < wanted else ""
        return self._found(f"no worse than v{blessed} on {asked}{few}; {sees(compared)}", wanted, compared, left_out)

    def _found(
        self,
        says: str,
        wanted: int,
        compared: Sequence[ShadowComparison] = (),
        left_out: Mapping[str, int] = EMPTY,
        *,
        refused: bool = False,
    ) -> ShadowResult:
        version, blessed = self._versions
        log.info("shadow", version=version, blessed=blessed, refused=refused, reason=says)
        facts = {
            "at": self._clock(),
            "version": version,
            "blessed": blessed,
            "refused": refused,
            "says": says,
            "num_wanted": wanted,
            "num_prompts": len(self._prompts),
            "num_units": len({prompt.unit for prompt in self._prompts}),
            "left_out": dict(left_out),
            "metrics": [item.facts for item in compared],
        }
        return ShadowResult(refused, says, facts)
