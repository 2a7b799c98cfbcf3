"""The row that every format is read into: one answer, with what people said of it. Pure.

A row that cannot be imported is refused by a name, which the table of an import counts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.tasks.scores import OtherScore

UNKNOWN_TIME = 1_577_836_800.0
"""2020-01-01 UTC. A row that does not say when it was made is dated so: the same row has the same id in every export."""


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
    scores: tuple[OtherScore, ...] = ()
    edit: Any = None


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
