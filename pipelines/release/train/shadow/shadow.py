"""The shadow of a train: both versions answer recent prompts of users with the same seed, and no user sees it.

In: a version and the blessed one. Out: a refusal with a reason, what it saw, or that it goes on; `shadow_pair`. Waits: until the engine has
loaded the version; for answers, which wait behind those of users; for graders that need no reference.

Each call takes a few seconds and asks a piece of the prompts at a time. A piece is stored once both versions have answered it. It grows
while it takes a short time; if the live version answers too late, the next one is smaller and has more time, so the deadline fits any
engine. The pairs are compared once, at the end: when all are there, or `shadow_seconds` have passed. How many there are then depends on the
engine's speed, not on who won.

A train against a provider compares with what it answered these users, and never asks it again: that is paid for.

Nothing is logged, trained on or counted as a user's: the requests say so (`x-millrace-purpose: shadow`, `store: false`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import structlog

from contracts.errors import Unavailable
from contracts.gating import Grade, MarkAnswer, SentinelFile
from contracts.records import FinishReason, GenerationBody
from contracts.tasks import Task
from pipelines.release.asking import LATE, REFUSED, BadVersion, SentinelAnswer, SentinelClient
from pipelines.release.grading import grade_blind
from pipelines.release.train.gathering import settings_of
from pipelines.release.train.metrics import shadow_level
from pipelines.release.train.repository import Train
from pipelines.release.train.shadow.comparing import GRADED, ShadowComparison, compare_marks, sees
from pipelines.release.train.shadow.repository import ShadowPair, ShadowPrompt, add_pairs, read_pairs, read_prompts
from pipelines.release.train.trip import ShadowResult
from runtime.database import Database

_LOOK_SECONDS = 5.0
"""No piece is begun later in a call."""
_FIRST, _MOST_AT_ONCE = 8, 64
_SHORT, _LONG = 1.0, 1.5
"""Of the time for one answer: the next piece is twice as large if both versions took less, and half as large if they took more."""
_LEAST_SECONDS, _MOST_SECONDS, _SLACK = 60.0, 300.0, 4.0
"""For one answer: so many times what the slowest user waited, within bounds. Four of the longest fit into the time of one look."""
_MOST_LATE = 0.25
"""If a larger share of the live version's answers comes too late, the piece is asked again with more time."""
NOT_GRADED = "not graded"
_COMPARED = frozenset({"", NOT_GRADED})
NO_MORE, OUT_OF_TIME, WAITING = "no more prompts", "out of time", "to be asked"
_NOT_FINITE = "log-probs are not finite"

log = structlog.get_logger()


class _WorkPiece(NamedTuple):
    """How many prompts are asked at once, and how long an answer may take."""

    num: int
    seconds: float


@dataclass(eq=False)
class PairedShadow:
    """See the module.

    `grade`: graders that need no reference; `graded`: the tasks that have some; `clock`: UTC epoch seconds; `monotonic`: seconds for timers.
    """

    database: Database
    client: SentinelClient
    mark: MarkAnswer
    grade: Grade
    _: KW_ONLY
    policy: str
    tasks: Mapping[str, Task]
    graded: frozenset[str]
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._train_id: int | None = None
        self._waiting: list[ShadowPrompt] = []
        self._num_unasked = 0
        """Prompts that were still to be asked when time was over."""
        self._piece = _WorkPiece(_FIRST, _LEAST_SECONDS)

    def __call__(self, train: Train, stop: threading.Event) -> ShadowResult:
        """Go on with the shadow of a train, by its settings.

        Raises VersionNotResident: no engine loaded one of the versions within the patience; Unavailable: too few answers came in time, or
        `stop` was set. It may be called again.
        """
        until = self.monotonic() + _LOOK_SECONDS
        pairs = self._begin(train)
        try:
            while self._waiting and self.monotonic() < until and not (pairs and self._is_out_of_time(train)):
                pairs += self._ask_piece(train, stop)
        except BadVersion as error:
            return self._found(train, error.message, pairs=pairs, refused=True)
        if pairs and self._waiting and self._is_out_of_time(train):
            # What ended once is not looked at again with more pairs.
            self._num_unasked, self._waiting = len(self._waiting), []
        if self._waiting:
            says = f"{len(pairs)} of {len(pairs) + len(self._waiting)} prompts were answered by both versions so far"
            return self._found(train, says, pairs=pairs, is_over=False)
        if not pairs:
            return self._found(train, "no shadow: no prompt of a user was logged yet")
        return self._judged(train, pairs)

    def _begin(self, train: Train) -> list[ShadowPair]:
        """The pairs so far; the first time also choose the prompts that are still to be asked."""
        with self.database.snapshot() as connection:
            done = read_pairs(connection, train.id)
            if self._train_id != train.id:
                missing = max(0, settings_of(train).shadow_prompts - len(done))
                self._waiting = read_prompts(
                    connection, self.policy, missing, self.tasks.keys(), done, provided=train.provider_share > 0.0
                )
                self._train_id, self._num_unasked = train.id, 0
                slowest = max((prompt.seconds for prompt in self._waiting), default=0.0)
                self._piece = _WorkPiece(_FIRST, min(_MOST_SECONDS, max(_LEAST_SECONDS, _SLACK * slowest)))
        asked = {pair.key for pair in done}  # by another process too
        self._waiting = [prompt for prompt in self._waiting if prompt.question.where not in asked]
        return done

    def _is_out_of_time(self, train: Train) -> bool:
        passed = self.clock() - train.started_at - train.paused_seconds
        return passed > settings_of(train).shadow_seconds

    def _ask_piece(self, train: Train, stop: threading.Event) -> list[ShadowPair]:
        """Have both versions answer the next prompts; returns the pairs, which are stored. Nothing is stored of a piece that fails."""
        began, prompts = self.monotonic(), self._waiting[: self._piece.num]
        questions = SentinelFile(tuple(prompt.question for prompt in prompts), "", {})
        client, draws = self.client.patient(self._piece.seconds), dict.fromkeys(questions.tasks, 0)
        try:
            mine = client.ask(questions, train.version, stop, draws)
            theirs: Sequence[SentinelAnswer] = [prompt.said for prompt in prompts]
            if not train.provider_share:
                theirs = client.ask(questions, train.blessed, stop, draws)
            self._check_late(train, theirs)
        except Unavailable:
            self._piece = self._calmer()
            raise
        if not all(answer.finite for answer in mine if answer.finish_reason != REFUSED):
            raise BadVersion(_NOT_FINITE)
        pairs = self._marked(prompts, mine, theirs)
        with self.database.transaction() as connection:
            add_pairs(connection, train.id, pairs)
        del self._waiting[: len(prompts)]
        took, (num, seconds) = self.monotonic() - began, self._piece
        num = 2 * num if took <= _SHORT * seconds else num // 2 if took > _LONG * seconds else num
        self._piece = _WorkPiece(min(_MOST_AT_ONCE, max(1, num)), seconds)
        return pairs

    def _calmer(self) -> _WorkPiece:
        return _WorkPiece(max(1, self._piece.num // 2), min(_MOST_SECONDS, 2.0 * self._piece.seconds))

    def _check_late(self, train: Train, answers: Sequence[SentinelAnswer]) -> None:
        """Raises Unavailable if the live version was too slow and the next piece can be easier: then the engines are busy."""
        late = sum(answer.finish_reason == LATE for answer in answers)
        if late > _MOST_LATE * len(answers) and self._calmer() != self._piece:
            raise Unavailable(
                f"{late} of {len(answers)} answers of the live version, v{train.blessed}, came too late, after "
                f"{self._piece.seconds:.0f} s; asked again with more time"
            )

    def _marked(
        self, prompts: Sequence[ShadowPrompt], mine: Sequence[SentinelAnswer], theirs: Sequence[SentinelAnswer]
    ) -> list[ShadowPair]:
        marks = [
            [self._marks(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
            for answers in (mine, theirs)
        ]
        ungraded = self._add_grades(prompts, (mine, theirs), marks)
        pairs = []
        for place, prompt in enumerate(prompts):
            is_refused = REFUSED in (mine[place].finish_reason, theirs[place].finish_reason)
            left_out = "refused by the endpoint" if is_refused else NOT_GRADED if place in ungraded else ""
            pairs.append(ShadowPair(prompt.question.where, prompt.unit, marks[0][place], marks[1][place], left_out))
        return pairs

    def _judged(self, train: Train, pairs: Sequence[ShadowPair]) -> ShadowResult:
        kept, settings = [pair for pair in pairs if pair.left_out in _COMPARED], settings_of(train)
        compared = compare_marks([pair.canary for pair in kept], [pair.live for pair in kept], shadow_level(settings))
        asked = f"{len(kept)} prompts of {len({pair.unit for pair in kept})} people"
        if worse := [item for item in compared if item.is_worse]:
            says = f"worse than {train.against} on {asked}: {'; '.join(item.words for item in worse)}"
            found = self._found(train, says, pairs=pairs, compared=compared, refused=True)
            return found._replace(blames_version=any(item.name != LATE for item in worse))
        wanted, few = settings.shadow_prompts, ""
        if self._num_unasked:
            num, seconds = len(pairs) + self._num_unasked, settings.shadow_seconds
            few = f", ended by time after {seconds:,.0f} s with {len(pairs)} of {num} pairs"
        elif len(pairs) < wanted:
            few = f", of {wanted} wanted: there are no more"
        says = f"no worse than {train.against} on {asked}{few}; {sees(compared)}"
        return self._found(train, says, pairs=pairs, compared=compared)

    def _marks(self, prompt: ShadowPrompt, answer: SentinelAnswer) -> dict[str, float]:
        if answer.finish_reason == REFUSED:
            return {}
        if answer.finish_reason == LATE:
            return {LATE: 1.0}
        question, metadata = prompt.question, dict(prompt.question.metadata)
        no_tokens: dict[str, Any] = dict.fromkeys(("prompt_ids", "completion_ids", "logprobs"), b"")
        body = GenerationBody(messages=question.messages, text=answer.text, metadata=metadata, **no_tokens)
        reason: FinishReason = "length" if answer.finish_reason == "length" else "stop"
        return {LATE: 0.0, "truncated": float(reason == "length"), **self.mark(question.task, body, reason)}

    def _add_grades(
        self,
        prompts: Sequence[ShadowPrompt],
        answers: Sequence[Sequence[SentinelAnswer]],
        marks: Sequence[Sequence[dict[str, float]]],
    ) -> set[int]:
        """Grade all answers of a task together. Returns the places without grades."""
        ungraded, questions = set[int](), [prompt.question for prompt in prompts]
        for task in self.graded:
            said = {
                (version, place): answer
                for version, given in enumerate(answers)
                for place, answer in enumerate(given)
                if questions[place].task == task and answer.finish_reason not in {LATE, REFUSED}
            }
            for (version, place), score in (grade_blind(self.grade, task, questions, said) if said else {}).items():
                if score.value is None:
                    ungraded.add(place)
                else:
                    marks[version][place][GRADED] = score.value
        return ungraded

    def _found(
        self,
        train: Train,
        says: str,
        *,
        pairs: Sequence[ShadowPair] = (),
        compared: Sequence[ShadowComparison] = (),
        refused: bool = False,
        is_over: bool = True,
    ) -> ShadowResult:
        about = {"version": train.version, "blessed": train.blessed, "refused": refused}
        log.info("shadow" if is_over else "shadow goes on", **about, reason=says)
        wanted = settings_of(train).shadow_prompts
        no_more = wanted - len(pairs) - len(self._waiting) - self._num_unasked
        not_asked = {NO_MORE: no_more, OUT_OF_TIME: self._num_unasked, WAITING: len(self._waiting)}
        facts = {
            "at": self.clock(),
            **about,
            "says": says,
            "num_wanted": max(wanted, wanted - no_more),
            "num_prompts": len(pairs),
            "num_units": len({pair.unit for pair in pairs}),
            "num_compared": sum(pair.left_out in _COMPARED for pair in pairs),
            "left_out": dict(Counter(pair.left_out for pair in pairs if pair.left_out)),
            "not_asked": {reason: number for reason, number in not_asked.items() if number > 0},
            "metrics": [item.facts for item in compared],
        }
        return ShadowResult(refused, says, facts, is_over=is_over)
