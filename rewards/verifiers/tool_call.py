"""`tool_call`: the answer calls tools that exist, with arguments that satisfy their schemas.

A broken call is the model's fault, and always scored, because a model that is not trained on its broken calls learns to make them where
it expects to fail. A repeated call is broken too, unless the task or the reference wants it more than once. If the request offered
tools, its calls are those that inference parsed from the answer's tokens, and a call in the text is broken; else they are read from the
text, in the form of any family (`contracts.answers`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.answers.texts import family_of_text
from contracts.tasks.section import TaskSection
from rewards.verifiers.calls import Call, Malformed, calls_of, calls_of_json, folded, parsed_calls
from rewards.verifiers.check import (
    Answer,
    Check,
    Verifier,
    after_reasoning,
    bad_reference,
    read_config,
    right,
    unlabelled,
    wrong,
)
from rewards.verifiers.strict_json import canonical, compile_schema, problem_of
from rewards.verifiers.traces import Traces

VERSION = 4


class Tool(TaskSection):
    """One tool."""

    name: str = Field(min_length=1)
    """What a call names."""
    description: str = ""
    """Ignored. It is allowed so that the app's own list of tools can be copied."""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    """JSON schema of the arguments."""


class Config(TaskSection):
    """Settings in the task file."""

    tools: tuple[Tool, ...] = Field(min_length=1)
    """Which tools there are."""
    required: bool = True
    """Whether an answer without any call fails. If not, prose passes, unless it looks like a broken call. With
    `match`, the reference decides if there is one."""
    at_most: int = Field(default=32, ge=1)
    """The most calls in an answer."""
    repeats: int = Field(default=1, ge=1)
    """How often the same call may occur; case and spaces in its arguments are ignored. With `match`, as often as in the
    reference, if that is more."""
    match: Literal["valid", "name", "exact"] = "valid"
    """`name`: the same tools as in `metadata.reference`, a JSON list of calls, in any order; `exact`: the same
    arguments too. Where an answer must not call, the reference is `[]`."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"tool {twice[0]!r} is defined twice; give each tool its own name")
        return self


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    rule = read_config(Config, config)
    schemas = {
        tool.name: compile_schema(tool.parameters, f"tools.{index}.parameters") for index, tool in enumerate(rule.tools)
    }

    written = {tool.name: tool.parameters for tool in rule.tools}
    traces = Traces(schemas)

    def check(answer: Answer) -> Check:
        try:
            parsed = answer.parsed
            if parsed is None:
                calls = calls_of(answer.text, written, traces)
            else:
                calls = parsed_calls(parsed.calls, parsed.text, traces)
            _check_calls(calls, rule, schemas)
            _check_repeats(calls, rule, answer.reference)
        except Malformed as error:
            return wrong(str(error))
        if not calls and not answer.text.strip():
            return wrong("neither a call nor text")
        if rule.match != "valid" and answer.reference is not None:
            return _compared(rule, calls, answer.reference)
        if rule.required and not calls:
            return wrong("no call")
        return right() if rule.match == "valid" else unlabelled("no metadata.reference")

    return after_reasoning(check)


def _check_calls(calls: list[Call], rule: Config, schemas: Mapping[str, Any]) -> None:
    """Raises Malformed."""
    if len(calls) > rule.at_most:
        raise Malformed(f"{len(calls)} calls, and at most {rule.at_most} are allowed")
    for number, call in enumerate(calls, 1):
        if call.name not in schemas:
            raise Malformed(f"call {number} names no tool of this task: {call.name[:40]!r}")
        if problem := problem_of(schemas[call.name], call.arguments):
            raise Malformed(f"arguments of call {number} ({call.name}): {problem}")


def _check_repeats(calls: list[Call], rule: Config, reference: str | None) -> None:
    """Raises Malformed."""
    wanted: Counter[str] = Counter()
    if rule.match != "valid" and reference is not None:
        with contextlib.suppress(Malformed):  # `_compared` reports it.
            wanted = Counter(map(_identity, calls_of_json(reference)))
    for said, num in Counter(map(_identity, calls)).items():
        if num > max(rule.repeats, wanted[said]):
            raise Malformed(f"the same call occurs {num} times: {said[:60]}")


def _identity(call: Call) -> str:
    return canonical([call.name, folded(call.arguments)])


def _compared(rule: Config, calls: list[Call], reference: str) -> Check:
    try:
        wanted = calls_of_json(reference)
    except Malformed as error:
        return bad_reference(f"metadata.reference is not a list of calls: {error}")
    if sorted(call.name for call in calls) != sorted(call.name for call in wanted):
        return Check(0.0, reason="other tools than the reference")
    if rule.match == "exact" and sorted(call.canonical for call in calls) != sorted(call.canonical for call in wanted):
        return Check(0.0, reason="other arguments than the reference")
    return right()


def explain(answer: Answer, config: Mapping[str, Any]) -> dict[str, str]:
    """The calls that were read from the answer and from the reference, or why there are none."""
    rule = read_config(Config, config)
    written = {tool.name: tool.parameters for tool in rule.tools}
    found = {"answer": _said(lambda: calls_of(answer.text, written, Traces(written)))}
    if (family := family_of_text(answer.text.strip())) is not None:
        found["family"] = family.name
    if (reference := answer.reference) is not None:
        found["reference"] = _said(lambda: calls_of_json(reference))
    return found


def _said(read: Callable[[], list[Call]]) -> str:
    try:
        return canonical([call._asdict() for call in read()])
    except Malformed as error:
        return f"broken: {error}"
