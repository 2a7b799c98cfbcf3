"""The row that every format is read into: one answer, with what people said of it. Pure.

A row that cannot be imported is refused by a name, which the table of an import counts.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

UNKNOWN_TIME = 1_577_836_800.0
"""2020-01-01 UTC. A row that does not say when it was made is dated so: the same row has the same id in every export."""
_EARLIEST = 946_684_800.0  # 2000-01-01: before it, an epoch time has another unit or is wrong
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))


class Refused(Exception):
    """A row, or a score of one, is not imported. `reason`: a short name such as `unknown_role`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ImportedScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A score of one answer as the export has it. `at`: as in the export; None: the end of the answer."""

    name: str
    value: Any = None
    at: Any = None
    id: str = ""
    author: str = ""
    kind: Literal["user", "judge", "operator"] = "user"
    comment: str | None = None
    is_edit: bool = False
    """`value` is the right answer."""


class ImportedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as the export has it: `records.py` checks it. `at` None: unknown."""

    messages: Any
    answer: Any
    """A text, a message, or a list of which the last message counts."""
    id: str = ""
    """The export's own name of it; empty: its content is its name."""
    tools: Any = None
    at: Any = None
    finished_at: Any = None
    model: str = ""
    user: str | None = None
    session: str | None = None
    store: bool | None = None
    finish_reason: str = "stop"
    prompt_tokens: Any = None
    completion_tokens: Any = None
    cost: Any = None
    scores: tuple[ImportedScore, ...] = ()
    edit: Any = None


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


def dig(content: Any, path: str) -> Any:
    """The value at a dotted path, such as `metadata.user_id` or `choices.0.text`; None if there is none."""
    for name in path.split("."):
        if isinstance(content, dict):
            content = content.get(name)
        elif isinstance(content, list) and name.isdecimal():
            content = content[int(name)] if int(name) < len(content) else None
        else:
            return None
    return content


def decoded(content: Any) -> Any:
    """JSON that an export wrote into a text, decoded; any other text and value as it is."""
    if isinstance(content, str) and content[:1] in {"{", "["}:
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return content
    return content


def first(content: dict[str, Any], *names: str) -> Any:
    """The first of these fields that is set."""
    return next((content[name] for name in names if content.get(name) is not None), None)


def as_text(value: Any) -> str | None:
    """A name as a text; None if it is empty or no name."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None
