"""What a score of another system says as a signal of a task: Langfuse's scores, OpenTelemetry's evaluations. Pure.

Imports and feedback read the same scores. What cannot be taken is refused by a name, which the table of an import counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from contracts.records import Scalar
from contracts.tasks import Task
from contracts.tasks.signals import SignalRule

MAX_TEXT = 65_536
"""Characters of a text or an edit."""
EVALUATION = "gen_ai.evaluation.result"
"""The name of OpenTelemetry's event."""
_SOURCES: Mapping[str, Literal["judge", "operator"]] = MappingProxyType({"EVAL": "judge", "ANNOTATION": "operator"})
_EDITED = "edited", "text"
"""Of a signal for edits whose task gives them a reward of its own."""
_SAYS_TRUE, _SAYS_FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_EARLIEST = 946_684_800.0  # 2000-01-01: before it, an epoch time has another unit or is wrong
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))


class Refused(Exception):
    """A row of an export, or a score, is not taken. `reason`: a short name such as `unknown_role`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OtherScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A score of one answer as another system has it. `at`: in that system's form; None: not said."""

    name: str
    value: Any = None
    at: Any = None
    id: str = ""
    author: str = ""
    kind: Literal["user", "judge", "operator"] = "user"
    comment: str | None = None
    is_edit: bool = False
    """`value` is the right answer."""


def of_langfuse(it: Mapping[str, Any]) -> OtherScore:
    """A score of Langfuse, with its names as `snake` has them. Raises KeyError: it has no name."""
    kind, value = str(it.get("data_type")), it.get("value")
    if kind in {"CATEGORICAL", "TEXT", "CORRECTION"}:
        value = first(it, "long_string_value", "string_value", "value")
    return OtherScore(
        name=str(it["name"]),
        value=value,
        at=first(it, "timestamp", "created_at"),
        id=str(it.get("id") or ""),
        author=as_text(it.get("author_user_id")) or "",
        kind=_SOURCES.get(str(it.get("source")), "user"),
        comment=as_text(it.get("comment")),
        is_edit=kind == "CORRECTION",
    )


def of_evaluation(given: Mapping[str, Any], at: Any) -> OtherScore:
    """The attributes of an `EVALUATION`. `at`: its time, in any form that `time_of` reads."""
    return OtherScore(
        name=str(given.get("gen_ai.evaluation.name")),
        value=first(given, "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label"),
        at=at,
        comment=as_text(given.get("gen_ai.evaluation.explanation")),
    )


def signal_of(score: OtherScore, task: Task, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """The signal that a score becomes. `names`: signals to names of scores. Raises Refused: no signal declares it."""
    for name, other in names.items():
        if other == score.name:
            return name
    if score.is_edit:
        rules = task.signals.items()
        if edits := [name for name, rule in rules if rule.means == "edit" or (name, rule.type) == _EDITED]:
            return edits[0]
    elif score.name in task.signals:
        return score.name
    raise Refused("no_signal")


def value_for(rule: SignalRule, given: Any) -> Scalar:
    """The value of a score as its signal takes it. Raises Refused: wrong type, unknown label, out of range, too long."""
    if rule.type == "bool":
        said = str(given).lower()
        if said not in _SAYS_TRUE + _SAYS_FALSE:
            raise Refused("wrong_type")
        return said in _SAYS_TRUE
    if rule.type == "number":
        return _number(rule, given)
    if rule.type == "label":
        return _label(rule, given)
    text = as_text(given)
    if text is None:
        raise Refused("wrong_type")
    if len(text) > MAX_TEXT:
        raise Refused("too_long")
    return text


def _number(rule: SignalRule, given: Any) -> float:
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        raise Refused("wrong_type") from None
    if not math.isfinite(number):
        raise Refused("wrong_type")
    if not rule.minimum <= number <= rule.maximum:
        raise Refused("out_of_range")
    return number


def _label(rule: SignalRule, given: Any) -> str:
    if isinstance(given, bool | int | float) and set(rule.labels) == {"up", "down"}:
        return "up" if given > 0 else "down"  # thumbs, as other systems count them
    for label in (str(given), str(given).lower()):
        if label in rule.labels:
            return label
    raise Refused("unknown_label")


def time_of(given: Any) -> float:
    """UTC epoch seconds of an ISO 8601 text or of epoch seconds, milli-, micro- or nanoseconds. Raises Refused: it is another value, or no time."""
    if isinstance(given, str) and not given.strip().isdecimal():
        try:
            moment = datetime.fromisoformat(given.strip())
        except ValueError:
            raise Refused("malformed_time") from None
        return _checked((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    try:
        seconds = float(given)
    except (TypeError, ValueError, OverflowError):
        raise Refused("malformed_time") from None
    for least, per_second in _UNITS:
        if seconds >= least:
            return _checked(seconds / per_second)
    return _checked(seconds)


def _checked(seconds: float) -> float:
    if not math.isfinite(seconds) or seconds < _EARLIEST:
        raise Refused("impossible_time")
    return seconds


def snake(it: Mapping[str, Any]) -> dict[str, Any]:
    """Langfuse's API says `traceId` where its exports may say `trace_id`: all names as the latter."""
    return {_HUMP.sub(r"_\1", name).lower(): value for name, value in it.items()}


def first(content: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is set."""
    return next((content[name] for name in names if content.get(name) is not None), None)


def as_text(value: Any) -> str | None:
    """A name as a text; None if it is empty or no name."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None


def inside(content: Mapping[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    """The objects in lists in lists: `resourceSpans`, `scopeSpans`, `spans` of OTLP's JSON."""
    parts = content.get(names[0])
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            yield from inside(part, *names[1:]) if len(names) > 1 else (part,)


def attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span, event or log record in OTLP's JSON. Raises ValueError: an integer is not written as one."""
    listed = given.get("attributes")
    if isinstance(listed, dict):
        return dict(listed)
    pairs = (pair for pair in listed or () if isinstance(pair, dict))
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in pairs}


def _plain(value: Any) -> Any:
    """The value of OTLP's `AnyValue`."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    [(kind, content)] = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_plain(item) for item in content.get("values") or ()]
    if kind == "kvlistValue":
        return {str(pair.get("key")): _plain(pair.get("value")) for pair in content.get("values") or ()}
    return content
