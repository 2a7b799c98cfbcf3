"""`json_exact`: the answer equals the JSON of `metadata.reference`, every field, types included.

Key order and white space do not count. Without a reference there is nothing to say: the check is unlabelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, Check, Context, Verifier, bad_reference, right, unlabelled, wrong

VERSION = 1


def build(config: Mapping[str, Any], context: Context = Context()) -> Verifier:  # noqa: B008 immutable
    """See `Builder`."""
    del context
    if config:
        raise InvalidTask(f"it takes no config, not {sorted(config)}; remove it", param=min(config))
    return _check


def _check(answer: Answer) -> Check:
    if (reference := answer.reference) is None:
        return unlabelled("no metadata.reference")
    try:
        wanted = _canonical(reference)
    except ValueError:
        return bad_reference("metadata.reference is not JSON")
    try:
        given = _canonical(answer.text)
    except (ValueError, RecursionError):
        return wrong("not JSON")
    return right() if given == wanted else Check(0.0)


def _canonical(text: str) -> str:
    # Text, not values: in Python 1 == True and 1 == 1.0, in JSON they differ.
    return json.dumps(json.loads(text), sort_keys=True)
