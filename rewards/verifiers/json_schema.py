"""`json_schema`: the answer is one JSON value that satisfies `config.schema`. Version 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, Check, Verifier


def build(config: Mapping[str, Any]) -> Verifier:
    """See `Builder`."""
    if not isinstance(config.get("schema"), dict):
        raise InvalidTask("verifier json_schema needs [verifiers.config.schema], a JSON schema")
    try:
        validator = jsonschema_rs.validator_for(config["schema"])
    except jsonschema_rs.ValidationError as error:
        raise InvalidTask(f"verifier json_schema: the schema itself is wrong: {error.message}") from error

    def check(answer: Answer) -> Check:
        try:
            value = json.loads(answer.text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            return Check(0.0, fault="model", reason=f"not JSON: {error}"[:200])
        for problem in validator.iter_errors(value):
            return Check(0.0, fault="model", reason=problem.message[:200])
        return Check(1.0)

    return check


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
