"""Which questions to ask about an answer, and the value that follows from the verdicts. Pure.

A question is one model looking at one case. Its key is a hash of all that can change the verdict, so that it is asked only once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from contracts.tasks.judges import PAIRWISE_LEVELS, JudgeEndpoint, JudgeRule
from rewards.judges.parse import JudgeVerdict
from rewards.judges.pregate import worthless
from rewards.judges.prompt import Case, rubric_hash, without_thoughts
from rewards.verifiers.check import Answer, Check, broken, unlabelled, wrong

Fate = Literal["judged", "pregated", "unlabelled", "shed", "provoked", "unparsable", "failed"]
FALLBACK = -1
"""The seat of the endpoint that is asked if another gave no verdict."""
_MAX_REASON = 300


class JudgeQuestion(NamedTuple):
    """One case for one model. `seat`: the index of the model among the judge's endpoints."""

    seat: int
    case: Case
    key: str
    fallback_key: str = ""


class NoVerdict(NamedTuple):
    """No verdict, and why: the reply had none, or there was no reply."""

    fate: Literal["unparsable", "failed"]
    reason: str
    culprits: tuple[str, ...] = ()
    """Answers without which there would have been a verdict."""


class Reading(NamedTuple):
    """What the judge says of one answer."""

    check: Check
    fate: Fate
    num_pairs: int = 0
    num_flips: int = 0
    disagreement: float = 0.0
    """Largest difference between the members' values."""


Findings = Mapping[str, JudgeVerdict | NoVerdict]


class Inquiry(NamedTuple):
    """The questions about one answer: `of_member`[m][n] are those of member m about case (or pair) n. `given` are values of pairs that are known without asking."""

    of_member: tuple[tuple[tuple[JudgeQuestion, ...], ...], ...] = ()
    given: tuple[float, ...] = ()
    settled: Reading | None = None
    text: str = ""
    """The answer, as a judge sees it."""

    @property
    def questions(self) -> list[JudgeQuestion]:
        """The questions of all members."""
        return [question for member in self.of_member for item in member for question in item]


def inquire(rule: JudgeRule, answer: Answer) -> Inquiry:
    """What to ask about an answer; nothing if it is settled without a question."""
    if rule.about == "follow_up":
        follow_up = answer.metadata.get("follow_up", "").strip()
        if not follow_up:
            return Inquiry(settled=Reading(unlabelled("the user wrote nothing next"), "unlabelled"))
        case = Case(answer.messages, (without_thoughts(answer.text),), answer.reference, follow_up)
        return _about(rule, [(case,)], case.answers[0])
    if rule.pregate and (reason := worthless(answer.text, answer.reference)):
        return Inquiry(settled=Reading(Check(0.0, fault="model", reason=reason), "pregated"))
    text = without_thoughts(answer.text)
    if rule.protocol == "pointwise":
        return _about(rule, [(Case(answer.messages, (text,), answer.reference),)], text)
    if not answer.siblings:
        return Inquiry(settled=Reading(unlabelled("no other choice to compare with"), "unlabelled"))
    pairs, given = [], []
    for sibling in map(without_thoughts, answer.siblings):
        if sibling == text:
            given.append(0.5)
        elif rule.pregate and worthless(sibling, answer.reference):
            given.append(1.0)
        else:
            orders = ((text, sibling), (sibling, text))
            pairs.append(tuple(Case(answer.messages, order, answer.reference) for order in orders))
    return _about(rule, pairs, text, tuple(given))


def read(rule: JudgeRule, inquiry: Inquiry, findings: Findings) -> Reading:
    """Combine the verdicts on an answer.

    If one is missing there is no value, because fewer members would be a different judge; unless the answer itself prevented
    the verdict.
    """
    found = [findings[question.key] for question in inquiry.questions]
    failures = [item for item in found if isinstance(item, NoVerdict)]
    for failure in failures:
        if inquiry.text in failure.culprits:
            return Reading(wrong(f"it keeps the judge from a verdict: {failure.reason}"), "provoked")
    for failure in failures:
        if not failure.culprits:
            return Reading(broken(f"judge_error: {failure.reason}"), failure.fate)
    if rule.protocol == "pairwise":
        return _compared(rule, inquiry, findings)
    verdicts = [item for item in found if isinstance(item, JudgeVerdict)]
    value, disagreement = combined(rule, [verdict.value for verdict in verdicts])
    lowest = min(verdicts, key=lambda verdict: verdict.value)
    reason = _explained(f"{lowest.level}: {lowest.reason}", len(verdicts), disagreement)
    return Reading(Check(value, reason=reason), "judged", disagreement=disagreement)


def combined(rule: JudgeRule, values: Sequence[float]) -> tuple[float, float]:
    """Minimum or lower quantile (linear, R-7, Hyndman and Fan 1996) of the members' values, and their largest difference."""
    ordered = sorted(values)
    disagreement = ordered[-1] - ordered[0]
    if rule.combine == "min":
        return ordered[0], disagreement
    place = rule.quantile * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low), disagreement


def both_orders(first: float, second: float) -> tuple[float, bool]:
    """The value of an answer compared with another, and whether the order changed the result: then it is a tie.

    `first` is the value of this answer when it was shown first, `second` that of the other answer when that was.
    """
    flipped = not math.isclose(first, 1.0 - second, abs_tol=1e-9)
    return (0.5 if flipped else first), flipped


def _compared(rule: JudgeRule, inquiry: Inquiry, findings: Findings) -> Reading:
    values, num_pairs, num_flips, disagreements = [*inquiry.given], 0, 0, [0.0]
    for pair in zip(*inquiry.of_member, strict=True):
        of_members = []
        for orders in pair:
            if any(isinstance(findings[question.key], NoVerdict) for question in orders):
                of_members.append(1.0)  # the other answer prevented the verdict, so it counts as worthless
                continue
            first, second = (_place(findings[question.key]) for question in orders)
            value, flipped = both_orders(first, second)
            of_members.append(value)
            num_pairs += 1
            num_flips += flipped
        value, disagreement = combined(rule, of_members)
        values.append(value)
        disagreements.append(disagreement)
    reason = f"against {len(values)} others; {num_flips} of {num_pairs} comparisons changed with their order"
    reason = _explained(reason, len(inquiry.of_member), max(disagreements))
    check = Check(sum(values) / len(values), reason=reason)
    return Reading(check, "judged", num_pairs, num_flips, max(disagreements))


def _place(found: JudgeVerdict | NoVerdict) -> float:
    """The value of the named level. Its probabilities do not matter here: two orders either agree or not."""
    if isinstance(found, NoVerdict):
        raise TypeError("there is no verdict")
    return PAIRWISE_LEVELS.index(found.level) / (len(PAIRWISE_LEVELS) - 1)


def _explained(reason: str, num_members: int, disagreement: float) -> str:
    among = f"{num_members} members, disagreement {disagreement:.2f}; " if num_members > 1 else ""
    return f"{among}{reason}"[:_MAX_REASON]


def _about(rule: JudgeRule, items: Sequence[tuple[Case, ...]], text: str, given: tuple[float, ...] = ()) -> Inquiry:
    rubric = rubric_hash(rule)

    def question(seat: int, endpoint: JudgeEndpoint, case: Case) -> JudgeQuestion:
        fallback = _key(rule.name, rule.fallback, rubric, case) if rule.fallback else ""
        return JudgeQuestion(seat, case, _key(rule.name, endpoint, rubric, case), fallback)

    of_member = tuple(
        tuple(tuple(question(seat, endpoint, case) for case in item) for item in items)
        for seat, endpoint in enumerate(rule.endpoints)
    )
    return Inquiry(of_member, given, text=text)


def _key(judge: str, endpoint: JudgeEndpoint, rubric: str, case: Case) -> str:
    content = [judge, endpoint.url, endpoint.model, endpoint.revision, rubric, list(case.messages), *case[1:]]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
