"""Reward for nothing: answers that name no answer, several, or the question again, given to the real verifiers.

Each attack grades random cases; what gets through is said with its number and an example. Needs no server; `math` and `sql` run in
their own worker processes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from examples.verifiers import instruction
from rewards.verifiers import choice, math, numeric, sql, tool_call
from rewards.verifiers.check import Answer, BatchVerifier, Builder, Check, Context
from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.cases import hedges, look_alikes, queries, text_calls
from tests.adversary.attacks.cases.restated_maths import restated

_NUM_RESTATED = 400
_NUM_GRADINGS = 4
_DEADLINE_SECONDS = 20.0
"""For a machine that is busy: what the machine took from it is no refusal."""
_PROMPT = [{"role": "user", "content": "Why is the sky blue?"}]
_TOOL = {"tools": [{"name": "get_weather"}]}


class _Case(NamedTuple):
    text: str
    reference: str | None = None


def attacks() -> list[Attack]:
    """See `attack.Attack`."""
    maths = [
        _Case(rf"\boxed{{{case.boxed}}}", case.reference) for case in restated(_NUM_RESTATED, secrets.randbits(32))
    ]
    numbers = [_Case(text, right) for right in ("42", "43") for text in hedges.hedged("42", "43")]
    numbers += [_Case(text, "42") for text in hedges.taken_back("42") + hedges.bounded("42", "44")]
    letters = [_Case(text, right) for right in "AB" for text in hedges.hedged("A", "B")]
    letters += [_Case(text, "A") for text in hedges.taken_back("A")]
    words = [_Case(text) for text in text_calls.of("get_weather")]
    call = '<tool_call>{"name":"get_weather","arguments":{"city":"CITY"}}</tool_call>'
    again = [
        _Case(call.replace("CITY", "Rome") + call.replace("CITY", city))
        for city in ("Rome", "rome", " Rome", "R\u043eme")
    ]
    rows = [_Case(given, right) for right, given in queries.LUCKY for _ in range(_NUM_GRADINGS)]
    return [
        _attack("math: the question again in the box", math.build, {}, maths),
        _attack("numeric: two numbers, a bound, a denial", numeric.build, {}, numbers),
        _attack("choice: two letters, a denial", choice.build, {}, letters),
        _attack("tool_call: a call as text where words pass", tool_call.build, {**_TOOL, "required": False}, words),
        _attack("tool_call: the same call again", tool_call.build, _TOOL, again),
        _attack("sql: rows of the given databases by heart", sql.build, queries.CONFIG, rows),
        Attack("instruction: look-alike letters and commas", _drawn, len(look_alikes.CASES)),
    ]


def _attack(name: str, build: Builder, config: Mapping[str, Any], cases: Iterable[_Case]) -> Attack:
    cases = tuple(dict.fromkeys(cases)) if build is not sql.build else tuple(cases)
    return Attack(name, _paid(build, config, cases), len(cases))


def _paid(build: Builder, config: Mapping[str, Any], cases: tuple[_Case, ...]) -> Callable[[], str | None]:
    def run() -> str | None:
        verifier = build(config, Context(_DEADLINE_SECONDS))
        answers = [Answer(case.text, {} if case.reference is None else {"reference": case.reference}) for case in cases]
        checks = verifier.check_all(answers) if isinstance(verifier, BatchVerifier) else list(map(verifier, answers))
        return _got(answers, checks)

    return run


def _drawn() -> str | None:
    answers, checks = [], []
    for name, parameters, text in look_alikes.CASES:
        verifier = instruction.build({"checks": [{"check": name, **parameters}]})
        if isinstance(verifier, BatchVerifier):
            raise TypeError("instruction grades one answer at a time")
        answers.append(Answer(text, messages=_PROMPT))
        checks.append(verifier(answers[-1]))
    return _got(answers, checks)


def _got(answers: list[Answer], checks: Iterable[Check]) -> str | None:
    """What was paid, or nothing. Raises RuntimeError if nobody graded some of it."""
    outcomes = list(zip(answers, checks, strict=True))
    if paid := [answer for answer, check in outcomes if check.value]:
        return f"{len(paid)} of {len(outcomes)} paid, as {paid[0].text[:60]!r}"
    if broken := [check.reason for _, check in outcomes if check.value is None]:
        raise RuntimeError(f"{len(broken)} were not graded: {broken[0]}")
    return None
