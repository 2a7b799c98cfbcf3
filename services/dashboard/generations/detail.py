"""The history of one answer as a list of events in the order of time. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.errors import InvalidRecord
from contracts.records import Signal, decode_shape
from services.dashboard.formatting import figure, version
from services.dashboard.generations.queries import AnswerRecord

EDITED = 200


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `detail` holds words of people or models: text, never markup."""

    at: float
    kind: str
    title: str
    state: str = ""
    detail: str = ""
    note: str = ""
    delay: float | None = None
    """Seconds since the answer."""


class PromptMessage(msgspec.Struct, frozen=True):
    """One message of the prompt."""

    role: str
    content: str


def story(answer: AnswerRecord) -> list[Event]:
    """Answer, join, signals, scores and outcomes, oldest first."""
    created = answer.head.created_at
    made = f"{answer.head.purpose} request, arm {answer.head.arm}, {version(answer.head.version)}"
    events = [
        Event(at=created, kind="answer", title="answered", note=made),
        Event(at=answer.head.joined_at, kind="join", title="joined", note="episodes knows the answer"),
        *(_signal(row) for row in answer.signals),
        *(_score(row) for row in answer.scores),
        *(_outcome(row) for row in answer.outcomes),
    ]
    events.sort(key=lambda event: event.at)
    return [msgspec.structs.replace(event, delay=max(0.0, event.at - created)) for event in events]


def messages(raw: list[dict[str, Any]]) -> list[PromptMessage]:
    """Role and text of each message; content parts and tool calls as JSON."""
    shown = []
    for message in raw:
        content = message.get("content")
        rest = {name: value for name, value in message.items() if name not in {"role", "content"} and value}
        texts = [content if isinstance(content, str) else _json(content)] if content is not None else []
        texts += [_json(rest)] if rest else []
        shown.append(PromptMessage(str(message.get("role", "?")), "\n".join(texts)))
    return shown


def excerpt(raw: list[dict[str, Any]], length: int = EDITED) -> str:
    """The last message of the user, shortened to fit a row."""
    said = [message.content for message in messages(raw) if message.role == "user"]
    return cut(said[-1], length) if said else ""


def cut(text: str, length: int = EDITED) -> str:
    """At most `length` characters of a text, on one line."""
    flat = " ".join(text[: 4 * length].split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


def said(wire: bytes, length: int = 60) -> str:
    """The value of a signal and the beginning of its comment, on one line."""
    return cut(_said(wire)[0], length)


def _signal(row: Any) -> Event:
    text, kind = _said(row.record)
    late = f"learned as revision {row.revision}" if row.revision is not None else ""
    note = " · ".join(filter(None, [f"by {row.submitter}{kind}", row.reason, late, f"id {row.id}"]))
    return Event(at=row.received_at, kind="signal", title=row.name, state=row.state, detail=text, note=note)


def _said(wire: bytes) -> tuple[str, str]:
    try:
        record = decode_shape(Signal, wire)
    except InvalidRecord as error:
        return error.message, ""
    parts = [record.value if isinstance(record.value, str) else _json(record.value)]
    parts += [f"correction: {record.correction}"] if record.correction else []
    parts += [f"comment: {record.comment}"] if record.comment else []
    parts += [f"metadata: {_json(record.metadata)}"] if record.metadata else []
    return "\n".join(parts), f" ({record.submitter.kind})"


def _score(row: Any) -> Event:
    reward = "no reward" if row.reward is None else f"reward {figure(row.reward)}"
    fault = f" · fault: {row.fault}" if row.fault != "none" else ""
    return Event(at=row.at, kind="score", title=reward, state=row.status, note=f"revision {row.revision}{fault}")


def _outcome(row: Any) -> Event:
    learned = f"first in {version(row.version)}" if row.version is not None else ""
    notes = [learned, row.reason, f"revision {row.revision}", f"epoch {row.epoch}", f"written by {row.writer}"]
    return Event(at=row.at, kind="outcome", title="outcome", state=row.state, note=" · ".join(filter(None, notes)))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
