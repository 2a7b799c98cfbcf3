"""`tool_call`: the answer calls tools that exist, with arguments that satisfy their schemas.

A broken call is the model's fault, and always scored, because a model that is not trained on its broken calls learns to make them where
it expects to fail. A repeated call is broken too, unless the task or the reference wants it more than once. If the request offered
tools, its calls are those that inference parsed from the answer's tokens, and a call in the text is broken; else they are read from the
text, in the form of any family (`contracts.answers`).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from contracts.answers.source import NotACall
from contracts.answers.texts import WrittenCall, calls_in_text, family_of_text
from contracts.tasks.section import TaskSection
from rewards.verifiers.check import (
    Answer,
    Check,
    ParsedAnswer,
    Verifier,
    after_reasoning,
    bad_reference,
    read_config,
    right,
    unlabelled,
    wrong,
)
from rewards.verifiers.lookalikes import as_displayed
from rewards.verifiers.strict_json import NotJson, canonical, compile_schema, problem_of, read_json
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
    written = {tool.name: tool.parameters for tool in rule.tools}
    schemas = {
        name: compile_schema(of, f"tools.{index}.parameters") for index, (name, of) in enumerate(written.items())
    }
    traces = Traces(schemas)

    def check(answer: Answer) -> Check:
        try:
            calls = parsed_calls(answer.parsed, traces) if answer.parsed else calls_of(answer.text, written, traces)
            _check_calls(calls, rule, schemas, answer.reference)
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


def _check_calls(calls: list[Call], rule: Config, schemas: Mapping[str, Any], reference: str | None) -> None:
    if len(calls) > rule.at_most:
        raise Malformed(f"{len(calls)} calls, and at most {rule.at_most} are allowed")
    for number, call in enumerate(calls, 1):
        if call.name not in schemas:
            raise Malformed(f"call {number} names no tool of this task: {call.name[:40]!r}")
        if problem := problem_of(schemas[call.name], call.arguments):
            raise Malformed(f"arguments of call {number} ({call.name}): {problem}")
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
    if rule.match == "exact" and sorted(map(canonical, calls)) != sorted(map(canonical, wanted)):
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


class Call(NamedTuple):
    """One call."""

    name: str
    arguments: dict[str, Any]


def folded(value: Any) -> Any:
    """Equal for arguments that differ only in case, spaces or look-alike letters, so that a disguised repeat is found."""
    if isinstance(value, str):
        return " ".join(as_displayed(value).casefold().split())
    if isinstance(value, dict):
        return {key: folded(inner) for key, inner in value.items()}
    return [folded(item) for item in value] if isinstance(value, list) else value


class Malformed(ValueError):
    """The text was meant as a call but cannot be executed. The message says why."""


def calls_of(text: str, schemas: Mapping[str, Mapping[str, Any]], traces: Traces) -> list[Call]:
    """The calls in an answer without its reasoning, in order. Empty if it is plain prose, in which `traces` finds no call.

    Raises Malformed: part of it is a broken call, or text follows a call.
    """
    text = text.strip()
    if text.startswith("{") and not traces.search(text):
        return []  # JSON that is no call
    try:
        found = calls_in_text(text, schemas) if text != "[]" else []
    except NotACall as error:
        raise Malformed(str(error)) from error
    if found:
        return [_read(call, number) for number, call in enumerate(found, 1)]
    if trace := traces.search(text):
        raise Malformed(f"{trace[:40]!r} looks like a call, but the answer has no call")
    return []


def parsed_calls(parsed: ParsedAnswer, traces: Traces) -> list[Call]:
    """The calls that inference parsed from an answer's tokens. Raises Malformed.

    A client runs only these, so a call in the text is broken, however well it is written.
    """
    written = [WrittenCall(call["function"]["name"], call["function"]["arguments"]) for call in parsed.calls]
    found = [_read(call, number) for number, call in enumerate(written, 1)]
    if calls_of(parsed.text, {}, traces):
        raise Malformed("a call is written as text, so nothing would run it")
    return found


def calls_of_json(text: str) -> list[Call]:
    """The calls of a reference: one as JSON, in any of the families' fields, or a list of them. Raises Malformed."""
    try:
        value = read_json(text)
        if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
            value = value["tool_calls"]
        listed = value if isinstance(value, list) else [value]
        found = calls_in_text(json.dumps(listed), {}) if listed else []
    except (NotJson, NotACall) as error:
        raise Malformed(str(error)) from error
    if found is None:
        raise Malformed("a list of calls is expected")
    return [_read(call, number) for number, call in enumerate(found, 1)]


def _read(written: WrittenCall, number: int) -> Call:
    try:
        return Call(written.name, read_json(written.arguments))
    except NotJson as error:
        raise Malformed(f"broken JSON in the arguments of call {number}: {error}") from error
