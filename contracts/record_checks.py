"""What a record must be so that every process can store it and compute with it. Pure.

Called by `decode`: whoever reads the log meets no number that a column cannot hold, no text that PostgreSQL refuses and no
time that is none. What a process can name by itself stays its own to name: a reward that is not finite, log-probs that are
missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.records import Attempt, Episode, Experience, Generation, Outcome, Sampling, Signal, Span

LATEST_TIME = 4_102_444_800.0
"""2100-01-01, UTC epoch seconds. The range reaches as far back before 1970, and is this wide on purpose: a clock that is days
off, or began anew after a power cut, is a matter for whoever watches clocks, and old is a name that the trainer gives. What lies
outside of it is no time at all: no calendar shows it, and sums of such times lose their seconds."""
MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
MAX_SEQUENCE = 2**62 - 1
"""Of what a trainer decides: one less than what stands for all of it."""
MAX_NAME, MAX_ID, MAX_ARM, MAX_REASON, MAX_REQUEST = 64, 128, 16, 128, 32
"""Characters of the columns in `contracts/tables`."""
_WORD = 4
_UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
is_completion_id = re.compile(rf"chatcmpl-{_UUID7}").fullmatch
is_sample_key = re.compile(rf"chatcmpl-{_UUID7}:(?:0|[1-9][0-9]{{0,8}})").fullmatch

_Lengths = Sequence[tuple[str, int]]
_GENERATION_TEXTS: _Lengths = (
    ("tenant", MAX_NAME), ("policy", MAX_NAME), ("task", MAX_NAME), ("arm", MAX_ARM),
)  # fmt: skip
_SIGNAL_TEXTS: _Lengths = (("id", MAX_ID), ("tenant", MAX_NAME), ("name", MAX_NAME))
_EXPERIENCE_TEXTS: _Lengths = (("policy", MAX_NAME), ("task", MAX_NAME), ("tenant", MAX_NAME))
_OUTCOME_TEXTS: _Lengths = (("reason", MAX_REASON),)


def problem_of(record: object) -> str:
    """Why a record cannot be processed by anybody, beginning with the field; empty if it can."""
    check = _CHECKS.get(type(record).__name__)
    return check(record) if check else ""


def packed_problem(name: str, packed: bytes) -> str:
    """Why bytes are no packed array of 4-byte numbers; empty if they are."""
    return f"{name}: {len(packed)} bytes are no array of numbers of {_WORD}" if len(packed) % _WORD else ""


def _generation(record: Generation) -> str:
    return (
        ("" if is_completion_id(record.completion_id) else _no_key("completion_id", record.completion_id))
        or _whole("choice", record.choice)
        or _texts(record, _GENERATION_TEXTS)
        or _time("created_at", record.created_at)
        or _time("finished_at", record.finished_at)
        or _share("arm_probability", record.arm_probability)
        or _share("ask_probability", record.ask_probability)
        or _spans(record.spans)
        or _sampling(record.sampling)
        or _attempt(record.attempt)
        or _whole("num_choices", record.num_choices)
        or _key_id(record.key_id)
    )


def _signal(record: Signal) -> str:
    return (
        ("" if is_completion_id(record.completion_id) else _no_key("completion_id", record.completion_id))
        or _whole("choice", record.choice)
        or _texts(record, _SIGNAL_TEXTS)
        or _text("submitter.id", record.submitter.id, MAX_ID)
        or _time("at", record.at)
        or _time("received_at", record.received_at)
        or _value(record.value)
        or _key_id(record.key_id)
    )


def _episode(record: Episode) -> str:
    return (
        _sample_key(record.key)
        or _whole("revision", record.revision)
        or _time("closed_at", record.closed_at)
        or _first("turns", map(_generation, record.turns))
        or _first("signals", map(_signal, record.signals))
    )


def _experience(record: Experience) -> str:
    return (
        _sample_key(record.key)
        or _whole("revision", record.revision)
        or _texts(record, _EXPERIENCE_TEXTS)
        or _time("generated_at", record.generated_at)
        or _time("scored_at", record.scored_at)
        or _first("segments", (_segment(item) for item in record.segments))
    )


def _outcome(record: Outcome) -> str:
    return (
        ("" if not record.key and record.state == "epoch_started" else _sample_key(record.key))
        or _whole("revision", record.revision)
        or _whole("epoch", record.epoch)
        or ("" if record.version is None else _whole("version", record.version, least=-1))
        or _texts(record, _OUTCOME_TEXTS)
        or _time("at", record.at)
        or _whole("sequence", record.sequence, most=MAX_SEQUENCE)
        or ("" if record.previous is None else _whole("previous", record.previous))
        or _whole("kept_sequence", record.kept_sequence, least=-1, most=MAX_SEQUENCE)
        or _first("also", map(_also, record.also))
    )


def _also(other: Any) -> str:
    return (
        _sample_key(other.key)
        or _whole("revision", other.revision)
        or _whole("sequence", other.sequence, most=MAX_SEQUENCE)
    )


_CHECKS: dict[str, Callable[[Any], str]] = {
    "Generation": _generation,
    "Signal": _signal,
    "Episode": _episode,
    "Experience": _experience,
    "Outcome": _outcome,
}


def _segment(segment: Any) -> str:
    return (
        packed_problem("token_ids", segment.token_ids)
        or packed_problem("logprobs", segment.logprobs)
        or _spans(segment.spans)
        or _sampling(segment.sampling)
    )


def _sample_key(key: str) -> str:
    return "" if is_sample_key(key) else _no_key("key", key)


def _no_key(name: str, text: str) -> str:
    kind = "sample key" if name == "key" else "completion id"
    return f"{name}: {text[:MAX_ID]!r} is not a {kind}"


def _whole(name: str, number: int, least: int = 0, most: int = MAX_INT32) -> str:
    return "" if least <= number <= most else f"{name}: {number} lies outside of [{least}, {most}]"


def _share(name: str, number: float) -> str:
    return "" if 0.0 <= number <= 1.0 else f"{name}: {number:g} is no probability"


def _time(name: str, seconds: float) -> str:
    # NaN is in no range.
    return "" if -LATEST_TIME <= seconds <= LATEST_TIME else f"{name}: {seconds:g} is no time between 1840 and 2100"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return "" if value - value == 0.0 else f"value: {value} is not a finite number"
    if isinstance(value, int) and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        return f"value: {value} has more than 64 bits"
    return ""


def _spans(spans: Iterable[Span]) -> str:
    for span in spans:
        if not (-1 <= span.version <= MAX_INT32 and 0 <= span.start <= MAX_INT32):
            return f"spans: start {span.start} of version {span.version} lies outside of [0, {MAX_INT32}]"
    return ""


def _sampling(sampling: Sampling) -> str:
    for name in ("temperature", "top_p", "min_p"):
        number = getattr(sampling, name)
        if number - number != 0.0:
            return f"sampling.{name}: {number} is not a finite number"
    return _whole("sampling.top_k", sampling.top_k, -1) or _whole("sampling.max_tokens", sampling.max_tokens)


def _attempt(attempt: Attempt | None) -> str:
    if attempt is None:
        return ""
    return _text("attempt.request", attempt.request, MAX_REQUEST) or _whole("attempt.count", attempt.count)


def _key_id(key_id: str | None) -> str:
    return "" if key_id is None else _text("key_id", key_id, MAX_NAME)


def _texts(record: object, lengths: _Lengths) -> str:
    for name, longest in lengths:
        text = getattr(record, name)
        if len(text) > longest or "\0" in text:
            return _text(name, text, longest)
    return ""


def _text(name: str, text: str, longest: int) -> str:
    if len(text) > longest:
        return f"{name}: {len(text)} characters, up to {longest} can be stored"
    return f"{name}: {text!r} has a NUL character, which PostgreSQL keeps in no text" if "\0" in text else ""


def _first(name: str, problems: Iterable[str]) -> str:
    return next((f"{name}[{place}].{problem}" for place, problem in enumerate(problems) if problem), "")
