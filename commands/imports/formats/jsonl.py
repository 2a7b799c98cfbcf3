"""Plain JSON lines: `{"messages": [...], "answer": "...", "id", "user", "session", "at", "model", "tools", "store", "signals": {NAME: VALUE}, "edit"}`.

Without `answer`, the last message is the answer, as in files for fine-tuning. A preference, `preferred` and `rejected`, is read as the rejected
answer with the preferred one as its edit: the log has one answer for each record, and what should have been said beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commands.imports.repository import Links
from commands.imports.rows import ImportedRow
from contracts.tasks.scores import OtherScore, Refused, as_text


def rows(content: dict[str, Any], links: Links) -> Iterator[ImportedRow]:
    """See `Format.rows`."""
    del links
    messages, answer, edit = content.get("messages"), content.get("answer"), content.get("edit")
    if content.get("rejected") is not None:
        answer, edit = content["rejected"], content.get("preferred", edit)
    if answer is None and isinstance(messages, list) and len(messages) > 1:
        *messages, answer = messages
        if not (isinstance(answer, dict) and answer.get("role") in {"assistant", "model", "ai"}):
            raise Refused("empty_answer")
    signals = content.get("signals") or {}
    if not isinstance(signals, dict):
        raise Refused("malformed_signals")
    store = content.get("store")
    yield ImportedRow(
        messages=messages,
        answer=answer,
        id=as_text(content.get("id")) or "",
        tools=content.get("tools"),
        at=content.get("at"),
        finished_at=content.get("finished_at"),
        model=as_text(content.get("model")) or "",
        user=as_text(content.get("user")),
        session=as_text(content.get("session")),
        store=store if isinstance(store, bool) else None,
        scores=tuple(OtherScore(name=str(name), value=value) for name, value in signals.items()),
        edit=edit,
    )
