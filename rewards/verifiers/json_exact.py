"""`json_exact`: the answer equals the JSON of `metadata.reference`, every field, types included. Version 1.

Key order and white space do not count. Without a reference there is nothing to say: the check is unlabelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, Check, Verifier


def build(config: Mapping[str, Any]) -> Verifier:
    """See `Builder`."""
    if config:
        raise InvalidTask(f"verifier json_exact takes no config, not {sorted(config)}")
    return _check


def _check(answer: Answer) -> Check:
    reference = answer.metadata.get("reference")
    if reference is None:
        return Check(None, status="unlabelled", reason="no metadata.reference")
    try:
        wanted = _canonical(reference)
    except ValueError:
        return Check(None, status="unscored", fault="user", reason="metadata.reference is not JSON")
    try:
        given = _canonical(answer.text)
    except (ValueError, RecursionError):
        return Check(0.0, fault="model", reason="not JSON")
    return Check(1.0 if given == wanted else 0.0)


def _canonical(text: str) -> str:
    # Text, not values: in Python 1 == True and 1 == 1.0, in JSON they differ.
    return json.dumps(json.loads(text), sort_keys=True)
