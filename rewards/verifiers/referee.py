"""Finds out who is at fault when comparing an answer with its reference hangs or kills a worker.

The worker gets `{"reference": str, "answer": str | null, "seed": str}` and replies `[verdict, value, reason]`; a null answer means to
compare the reference with itself. A reference that fails alone is the app's mistake. If it works alone, the answer hung or crashed the
worker, and that is the model's fault; else breaking the grader would avoid a bad reward. The only excuse is a worker that got almost no
processor time: then the machine was busy, and the answer not hard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rewards.killable.pool import Pool
from rewards.verifiers.check import Answer, BatchVerifier, Check, bad_reference, broken, unlabelled, wrong
from runtime.killable.process import ItemOutcome

STARVED_SHARE, STARVED_SECONDS = 0.2, 0.25
"""A late worker that used less processor time than both limits was starved. Honest comparisons need milliseconds."""
_FAILED = frozenset({"late", "crashed", "exhausted"})
_NUM_REMEMBERED = 1024
_MAX_REFERENCE = 50_000


class _Case(NamedTuple):
    reference: str
    answer: str
    seed: str = ""


def refereed(
    pool: Pool,
    deadline_seconds: float,
    extract: Callable[[str], str | Check],
    seed_of: Callable[[Answer], str] | None = None,
) -> BatchVerifier:
    """A verifier that compares answers with references in `pool`.

    `extract` finds the answer in the text, or says why there is none. `seed_of`: the seed of random draws, so that a replay repeats them.
    """
    referee = _Referee(pool, deadline_seconds)

    def check_all(answers: Sequence[Answer]) -> list[Check]:
        prepared = [_prepared(answer, extract, seed_of) for answer in answers]
        # Equal cases run once: a policy that repeats the same bomb pays for each, but we wait for only one.
        cases = list(dict.fromkeys(case for case in prepared if isinstance(case, _Case)))
        found = dict(zip(cases, referee.judge(cases), strict=True))
        return [found[case] if isinstance(case, _Case) else case for case in prepared]

    return BatchVerifier(check_all)


def _prepared(
    answer: Answer, extract: Callable[[str], str | Check], seed_of: Callable[[Answer], str] | None
) -> _Case | Check:
    if answer.reference is None:
        return unlabelled("no metadata.reference")
    if len(answer.reference) > _MAX_REFERENCE:
        return bad_reference(f"metadata.reference is longer than {_MAX_REFERENCE} characters")
    found = extract(answer.text)
    if isinstance(found, Check):
        return found
    return _Case(answer.reference, found, seed_of(answer) if seed_of else "")


class _Referee:
    def __init__(self, pool: Pool, deadline_seconds: float) -> None:
        self._pool, self._deadline = pool, deadline_seconds
        self._known: dict[str, Check] = {}
        """By reference that was checked alone: the mistake in it, or a score if it can be compared."""

    def judge(self, cases: Sequence[_Case]) -> list[Check]:
        known = {case.reference: self._known.get(case.reference) for case in cases}
        mistakes = {reference: check for reference, check in known.items() if check and check.status != "scored"}
        asked = [case for case in cases if case.reference not in mistakes]
        outcomes = self._outcomes(asked)
        # A crash may come from outside, for example if memory ran out. It is blamed on the answer only if it happens again.
        outcomes |= self._outcomes([case for case in asked if outcomes[case].how == "crashed"])
        for case in asked:
            if outcomes[case].how == "answered" and (check := _check(outcomes[case])).status == "scored":
                self._remember(case.reference, check)
        failed = {case.reference for case in asked if outcomes[case].how in _FAILED}
        mistakes |= self._alone([reference for reference in failed if reference not in self._known])
        return [mistakes.get(case.reference) or _check(outcomes[case]) for case in cases]

    def _outcomes(self, cases: Sequence[_Case]) -> dict[_Case, ItemOutcome]:
        items = [case._asdict() for case in cases]
        return dict(zip(cases, self._pool.run_all(items, self._deadline), strict=True))

    def _alone(self, references: list[str]) -> dict[str, Check]:
        """The references that cannot be compared, each with its mistake."""
        items = [{"reference": reference, "answer": None} for reference in references]
        found = {}
        for reference, outcome in zip(references, self._pool.run_all(items, self._deadline), strict=True):
            check = _check(outcome)
            if check.fault == "model":
                check = bad_reference(f"metadata.reference: {check.reason}")
            if check.status != "scored":
                found[reference] = check
            if check.fault != "infra":
                self._remember(reference, check)
        return found

    def _remember(self, reference: str, check: Check) -> None:
        if len(self._known) >= _NUM_REMEMBERED:
            self._known = {}
        self._known[reference] = check


def _check(outcome: ItemOutcome) -> Check:
    if outcome.how == "answered":
        return _verdict(outcome.value)
    if outcome.how in {"unstarted", "raised"}:
        return broken(outcome.reason)  # An unexpected error in the worker is our own mistake.
    if outcome.how == "late" and outcome.cpu_seconds < min(STARVED_SECONDS, STARVED_SHARE * outcome.deadline_seconds):
        return broken(f"{outcome.reason}, and got only {outcome.cpu_seconds:.1f} s of processor time")
    return wrong(outcome.reason)


def _verdict(reply: object) -> Check:
    match reply:
        case ["scored", float() | int() as value, str() as reason]:
            return Check(float(value), fault="model" if reason and value < 1.0 else "none", reason=reason[:200])
        case ["bad_reference", None, str() as reason]:
            return bad_reference(reason)
        case ["broken", None, str() as reason]:
            return broken(reason)
    return broken(f"the worker replied {reply!r}")
