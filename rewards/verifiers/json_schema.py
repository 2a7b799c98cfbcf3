"""`json_schema`: the answer is one JSON value that satisfies `config.schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, Check, Context, Verifier, right, wrong

VERSION = 1


def build(config: Mapping[str, Any], context: Context = Context()) -> Verifier:  # noqa: B008 immutable
    """See `Builder`."""
    del context
    if not isinstance(config.get("schema"), dict):
        raise InvalidTask("it needs [verifiers.config.schema], a JSON schema", param="schema")
    try:
        validator = jsonschema_rs.validator_for(config["schema"])
    except jsonschema_rs.ValidationError as error:
        raise InvalidTask(f"the schema itself is wrong: {error.message}", param="schema") from error

    def check(answer: Answer) -> Check:
        try:
            value = json.loads(answer.text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            return wrong(f"not JSON: {error}")
        for problem in validator.iter_errors(value):
            return wrong(problem.message)
        return right()

    return check


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
