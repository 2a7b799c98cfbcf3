"""`json_schema`: the answer is one JSON value that satisfies `config.schema`.

JSON that is ambiguous between parsers (a duplicate key, NaN, a number that overflows) is the model's fault. So is a fence around it,
unless `config.fenced` is true: an app that reads JSON cannot read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, Check, Verifier, after_reasoning, right, wrong
from rewards.verifiers.strict_json import NotJson, canonical, compile_schema, problem_of, read_json, without_fence

VERSION = 3


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    if extra := sorted(config.keys() - {"schema", "fenced"}):
        raise InvalidTask(f"it takes `schema` and `fenced`, not {extra[0]!r}", param=extra[0])
    if not isinstance(config.get("schema"), dict):
        raise InvalidTask("it needs [verifiers.config.schema], a JSON schema", param="schema")
    if not isinstance(may_be_fenced := config.get("fenced", False), bool):
        raise InvalidTask("it is true or false", param="fenced")
    validator = compile_schema(config["schema"], "schema")

    def check(answer: Answer) -> Check:
        try:
            value = read_json(without_fence(answer.text) if may_be_fenced else answer.text)
        except NotJson as error:
            return wrong(f"not JSON: {error}")
        problem = problem_of(validator, value)
        return wrong(problem) if problem else right()

    return after_reasoning(check)


def explain(answer: Answer, config: Mapping[str, Any]) -> dict[str, str]:
    """The JSON that was read, or why there is none."""
    try:
        value = read_json(without_fence(answer.text) if config.get("fenced") else answer.text)
    except NotJson as error:
        return {"answer": f"not JSON: {error}"}
    return {"answer": canonical(value)}
