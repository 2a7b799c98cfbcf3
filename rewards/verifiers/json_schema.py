"""`json_schema`: the answer is one JSON value that satisfies `config.schema`.

Patterns run in linear time, and nothing is fetched. JSON that is ambiguous between parsers (a duplicate key, NaN, a number
that overflows) is refused as the model's fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, Check, Context, Verifier, after_reasoning, right, wrong
from rewards.verifiers.strict_json import NotJson, compile_schema, problem_of, read_json

VERSION = 3


def build(config: Mapping[str, Any], context: Context = Context()) -> Verifier:  # noqa: B008 immutable
    """See `Builder`."""
    del context
    if extra := sorted(config.keys() - {"schema"}):
        raise InvalidTask(f"it takes `schema` alone, not {extra[0]!r}", param=extra[0])
    if not isinstance(config.get("schema"), dict):
        raise InvalidTask("it needs [verifiers.config.schema], a JSON schema", param="schema")
    validator = compile_schema(config["schema"], "schema")

    def check(answer: Answer) -> Check:
        try:
            value = read_json(answer.text)
        except NotJson as error:
            return wrong(f"not JSON: {error}")
        problem = problem_of(validator, value)
        return wrong(problem) if problem else right()

    return after_reasoning(check)
