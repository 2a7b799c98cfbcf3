"""`json_exact`: the answer equals the JSON of `metadata.reference`, every field, types included.

Key order and white space do not count. Without a reference the check is unlabelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, BadReference, Check, Verifier, right, with_reference, wrong
from rewards.verifiers.strict_json import NotJson, canonical, read_json

VERSION = 3


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    if config:
        raise InvalidTask(f"it takes no config, not {sorted(config)}; remove it", param=min(config))
    return with_reference(_check)


def _check(answer: Answer, reference: str) -> Check:
    try:
        wanted = canonical(read_json(reference))
    except NotJson as error:
        raise BadReference(f"metadata.reference is not JSON: {error}") from error
    try:
        given = canonical(read_json(answer.text))
    except NotJson as error:
        return wrong(f"not JSON: {error}")
    return right() if given == wanted else Check(0.0, reason="other JSON than the reference")
