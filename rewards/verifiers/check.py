"""What a verifier is: a pure function of the answer, built once from the task file's `config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from contracts.records import Fault, ScoreStatus


class Check(NamedTuple):
    """What a verifier found. `value` is in [0, 1], and None unless `status` is scored."""

    value: float | None
    status: ScoreStatus = "scored"
    fault: Fault = "none"
    reason: str = ""


class Answer(NamedTuple):
    """What a verifier may look at."""

    text: str
    metadata: Mapping[str, str]


Verifier = Callable[[Answer], Check]
Builder = Callable[[Mapping[str, Any]], Verifier]
"""Raises InvalidTask if the config is not what the kind needs."""
