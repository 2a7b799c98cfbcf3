"""What the values of a record must be, so that every process can store them and compute with them. Pure.

A reader of the log meets no number that a column cannot hold, no text that PostgreSQL refuses, and no impossible time. A field
name means the same in every record, so each name has one check.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from contracts.packing import experts_problem, support_problem

LATEST_TIME = 4_102_444_800.0
"""2100-01-01, UTC epoch seconds. The earliest time lies equally far before 1970. The range is wide on purpose: a clock that is days
off, or that restarted at 1970, is the clock watch's business, and old samples are the trainer's. Values outside of the range cannot
be times: no calendar shows them, and sums of them lose whole seconds."""
MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
MAX_SEQUENCE = 2**62 - 1
"""The highest sequence number of a decision; one more stands for "all of them"."""
MAX_NAME, MAX_ID, MAX_ARM, MAX_UNIT, MAX_REASON, MAX_REQUEST, MAX_SESSION = 64, 128, 16, 32, 128, 32, 256
"""Characters of the columns in `contracts/tables`."""
_Check = Callable[[Any], str]
_WORD = 4
_UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
is_completion_id = re.compile(rf"chatcmpl-{_UUID7}").fullmatch
is_sample_key = re.compile(rf"chatcmpl-{_UUID7}:(?:0|[1-9][0-9]{{0,8}})").fullmatch


def problem_of(record: Any) -> str:
    """Why no process can handle a record, beginning with the field; empty if there is no problem."""
    for name, check in _checks_of(record.__class__):
        if problem := check(value := getattr(record, name)):
            if name == "key" and not value and getattr(record, "state", "") == "epoch_started":
                continue  # a control record is about no sample
            return f"{name}{problem}"
    return ""


def tokens_problem(body: Any) -> str:
    """Why the tokens in a generation's body, and what was recorded of each, cannot be; empty if they can."""
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        if problem := _packed(getattr(body, name)):
            return f"{name}{problem}"
    num_tokens = (len(body.prompt_ids) + len(body.completion_ids)) // _WORD
    return experts_problem(body.experts, body.expert_shape, num_tokens) or support_problem(
        body.support, np.frombuffer(body.completion_ids, "<i4")
    )


def _packed(packed: bytes) -> str:
    return f": {len(packed)} bytes are not an array of {_WORD}-byte numbers" if len(packed) % _WORD else ""


def _formed(is_formed: Callable[[str], object], what: str) -> _Check:
    def check(text: str | None) -> str:
        return "" if text is None or is_formed(text) else f": {text[:MAX_ID]!r} is not a {what}"

    return check


def _whole(least: int = 0, most: int = MAX_INT32) -> _Check:
    def check(number: int | None) -> str:
        return "" if number is None or least <= number <= most else f": {number} is outside of [{least}, {most}]"

    return check


def _share(number: float) -> str:
    return "" if 0.0 <= number <= 1.0 else f": {number:g} is not a probability"


def _drawn(found: Any) -> str:
    if found is None:
        return ""
    problem = _share(found.share)
    return f".share{problem}" if problem else _nested(found)


def _time(seconds: float) -> str:
    # NaN fails this comparison too.
    return "" if -LATEST_TIME <= seconds <= LATEST_TIME else f": {seconds:g} is not a time between 1840 and 2100"


def _finite(number: float) -> str:
    return "" if number - number == 0.0 else f": {number} is not a finite number"


def _value(value: bool | float | str) -> str:
    if isinstance(value, int) and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        return f": {value} has more than 64 bits"
    return _finite(value) if isinstance(value, float) else ""


def _text(longest: int) -> _Check:
    def check(text: str | None) -> str:
        if text is None or (len(text) <= longest and "\0" not in text):
            return ""
        if len(text) > longest:
            return f": {len(text)} characters, up to {longest} can be stored"
        return f": {text!r} has a NUL character, which PostgreSQL does not store"

    return check


def is_place(place: tuple[int, int] | None) -> bool:
    """True if a log can be asked for it, or if there is none."""
    return place is None or (0 <= place[0] <= MAX_INT32 and 0 <= place[1] <= MAX_INT64)


def _nested(record: Any) -> str:
    problem = "" if record is None else problem_of(record)
    return f".{problem}" if problem else ""


def _each(records: tuple[Any, ...]) -> str:
    for place, record in enumerate(records):
        if problem := problem_of(record):
            return f"[{place}].{problem}"
    return ""


_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(("choice", "num_choices", "parent_tokens", "revision", "epoch"), _whole()),
    **dict.fromkeys(("previous", "start", "count", "max_tokens", "index"), _whole()),
    **dict.fromkeys(("prompt_tokens", "completion_tokens"), _whole()),
    **dict.fromkeys(("version", "top_k"), _whole(least=-1)),
    "sequence": _whole(most=MAX_SEQUENCE),
    "calls": _whole(least=1),
    "kept_sequence": _whole(least=-1, most=MAX_SEQUENCE),
    **dict.fromkeys(
        ("created_at", "finished_at", "closed_at", "generated_at", "scored_at", "received_at", "at"), _time
    ),
    **dict.fromkeys(("arm_probability", "ask_probability", "credit"), _share),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"), _finite
    ),
    **dict.fromkeys(("tenant", "policy", "task", "name", "key_id", "branch", "group"), _text(MAX_NAME)),
    **dict.fromkeys(("origin", "import_id"), _text(MAX_NAME)),
    "model": _text(MAX_ID),
    "cost": lambda dollars: "" if dollars is None else _finite(dollars),
    "id": _text(MAX_ID),
    "arm": _text(MAX_ARM),
    "unit": _text(MAX_UNIT),
    **dict.fromkeys(("canary", "holdout", "learning"), _drawn),
    "reason": _text(MAX_REASON),
    "request": _text(MAX_REQUEST),
    "completion_id": _formed(is_completion_id, "completion id"),
    **dict.fromkeys(("key", "last", "parent"), _formed(is_sample_key, "sample key")),
    "session": _text(MAX_SESSION),
    "value": _value,
    "source": lambda place: "" if is_place(place) else f": {place} is not a place of the log",
    **dict.fromkeys(("token_ids", "logprobs"), _packed),
    **dict.fromkeys(("sampling", "attempt", "submitter", "turn", "share", "draw", "provided"), _nested),
    **dict.fromkeys(("turns", "signals", "segments", "spans", "also"), _each),
}
"""Field name to its check. A problem begins with what follows the name: a colon, or the path to a field inside."""


@cache
def _checks_of(kind: type) -> tuple[tuple[str, _Check], ...]:
    fields: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    return tuple((name, _CHECKS[name]) for name in fields if name in _CHECKS)
