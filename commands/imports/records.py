"""From a row to the records of the log: one generation, and a signal for each score. Pure.

A row's name and time make its completion id; a score's content makes the id of its signal. The name is the export's id, and the content where
the export says no id or no time. So the same row makes the same records whenever it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from commands.imports.chat import ImportedReply, messages_of, reply_of, tools_of
from commands.imports.mapping import Maps
from commands.imports.rows import UNKNOWN_TIME, ImportedRow
from contracts.event_log import MAX_RECORD_BYTES, Message
from contracts.ids import imported_completion_id
from contracts.record_checks import MAX_ID, problem_of
from contracts.records import Generation, GenerationBody, Provided, Signal, Submitter, pack_body
from contracts.sampling import Sampling
from contracts.tasks import Task
from contracts.tasks.scores import MAX_TEXT, OtherScore, Refused, signal_of, time_of, value_for
from contracts.topics import GENERATIONS, SIGNALS
from runtime.log.outbox import message

MAX_AHEAD_SECONDS = 60.0
"""How far the clock of another system may be ahead."""
TENANT = "default"
ARM = "imported"
_UNKNOWN_SAMPLING = Sampling(temperature=1.0, max_tokens=0)


class Target(NamedTuple):
    """Where the rows of one import go. `now`: UTC epoch seconds; `fits`: whether a text fits into the policy's context."""

    origin: str
    import_id: str
    policy: str
    task: Task
    maps: Maps
    now: float
    fits: Callable[[str], bool]


class CheckedRow(NamedTuple):
    """A row that can be logged. `name`: what distinguishes it from all other rows. Times: UTC epoch seconds."""

    row: ImportedRow
    name: bytes
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    reply: ImportedReply
    at: float
    finished_at: float


class MadeSignal(NamedTuple):
    """A signal, and its message."""

    record: Signal
    message: Message


def checked(row: ImportedRow, target: Target) -> CheckedRow:
    """Check a row. Raises Refused: it cannot be imported."""
    consents = target.task.consent == "train" if row.store is None else row.store
    if not consents:
        raise Refused("no_consent")
    messages, reply, tools = messages_of(row.messages), reply_of(row.answer), tools_of(row.tools)
    at = UNKNOWN_TIME if row.at is None else time_of(row.at)
    finished_at = at if row.finished_at is None else max(at, time_of(row.finished_at))
    if finished_at > target.now + MAX_AHEAD_SECONDS:
        raise Refused("future_time")
    # Without a time, an id may only be the number of a line in its file.
    own = (row.at is not None and row.id) or msgspec.json.encode((row.id, messages, reply, row.user, row.session, at))
    name = b"\0".join(
        part if isinstance(part, bytes) else part.encode() for part in (target.origin, target.task.name, own)
    )
    return CheckedRow(row, name, messages, tools, reply, at, finished_at)


def completion_id_of(row: CheckedRow, attempt: int) -> str:
    """Its completion id. `attempt`: how often it was imported and taken back."""
    return imported_completion_id(row.at, b"%s\0%d" % (row.name, attempt), row.row.session)


def generation_of(checked_row: CheckedRow, completion_id: str, target: Target) -> Message:
    """The message of its record. Raises Refused: a field of it cannot be stored, or it is too large."""
    row, reply, task = checked_row.row, checked_row.reply, target.task
    body = GenerationBody(
        messages=checked_row.messages,
        text=reply.text,
        prompt_ids=b"",
        completion_ids=b"",
        logprobs=b"",
        tools=checked_row.tools,
        tool_calls=reply.tool_calls,
        reasoning=reply.reasoning,
    )
    provided = Provided(
        origin=target.origin,
        model=row.model[:MAX_ID],
        prompt_tokens=_count(row.prompt_tokens),
        completion_tokens=_count(row.completion_tokens),
        cost=_dollars(row.cost),
        import_id=target.import_id,
    )
    return _sendable(
        GENERATIONS,
        Generation(
            completion_id=completion_id,
            choice=0,
            tenant=TENANT,
            policy=target.policy,
            task=task.name,
            task_hash=task.hash,
            purpose="imported",
            arm=ARM,
            arm_probability=1.0,
            spans=(),
            sampling=_UNKNOWN_SAMPLING,
            finish_reason="length" if row.finish_reason in {"length", "max_tokens"} else "stop",
            created_at=checked_row.at,
            finished_at=checked_row.finished_at,
            engine="",
            dtype="",
            session_id=row.session,
            person=row.user,
            num_choices=1,
            provided=provided,
            body=pack_body(body),
        ),
    )


def made_signal(score: OtherScore, about: CheckedRow, completion_id: str, target: Target) -> MadeSignal:
    """The signal of a score. Raises Refused: no signal declares it, or its value or time cannot be taken."""
    name = signal_of(score, target.task, target.maps.signals)
    given, correction = score.value, None
    if score.is_edit:
        given = correction = _edit(score.value, about.reply, target)
    value = value_for(target.task.signals[name], given)
    at = about.finished_at if score.at is None else time_of(score.at)
    if at > target.now + MAX_AHEAD_SECONDS:
        raise Refused("future_time")
    content = msgspec.json.encode((completion_id, name, score.id, value, correction, score.author))
    kind = score.kind
    record = Signal(
        id=f"import-{hashlib.blake2b(content, digest_size=16).hexdigest()}",
        completion_id=completion_id,
        choice=0,
        name=name,
        value=value,
        correction=correction,
        at=at,
        received_at=target.now,
        tenant=TENANT,
        submitter=Submitter(id=(score.author or about.row.user or "anonymous")[:MAX_ID], kind=kind),
        comment=score.comment[:MAX_TEXT] if score.comment else None,
    )
    return MadeSignal(record, _sendable(SIGNALS, record))


def _edit(given: Any, reply: ImportedReply, target: Target) -> str:
    text = given if isinstance(given, str) else reply_of(given).text
    if not text.strip():
        raise Refused("empty_edit")
    if text == reply.text:
        raise Refused("edit_is_answer")
    if len(text) > MAX_TEXT or not target.fits(text):
        raise Refused("edit_too_long")
    return text


def _sendable(topic: str, record: Any) -> Message:
    if problem := problem_of(record):
        raise Refused(f"bad_{problem.partition(':')[0].replace('.', '_')}")
    sent = message(topic, record.key, record)
    if sent.num_bytes > MAX_RECORD_BYTES:
        raise Refused("too_large")
    return sent


def _count(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**31 else None


def _dollars(given: Any) -> float | None:
    try:
        cost = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return cost if cost - cost == 0.0 else None
