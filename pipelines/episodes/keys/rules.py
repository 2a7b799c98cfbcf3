"""Which answer a key means, and what a session's next message says about the answer before it. Pure.

A key that several answers bear means the newest: that of a session moves on with every turn, and a join key that was used
again is the answer that replaced the earlier one. It does not matter in which order they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from contracts.errors import InvalidRecord
from contracts.ids import sample_key, time_of
from contracts.records import Generation, Signal, Submitter
from contracts.tables import MAX_KEY
from contracts.tasks import Task

MAX_FOLLOW_UP = 2_000
_MAX_SUBMITTER = 128


SESSION = "session"


class KeyName(NamedTuple):
    """`kind`: "key" or "session"."""

    tenant: str
    kind: str
    value: str


class Answer(NamedTuple):
    """One choice of one completion."""

    completion_id: str
    choice: int

    @property
    def age(self) -> tuple[str, int]:
        """Completion ids begin with their time; of one completion the first choice speaks for all."""
        return self.completion_id, -self.choice


def answer_at(answers: Iterable[Answer], received_at: float) -> Answer | None:
    """The last answer of a session when a signal about it came, if a later one shows that it was the last.

    None: there was none yet, or the answer that was the last may not have been read yet.
    """
    ordered = sorted(answers, key=lambda answer: answer.age)
    before = [answer for answer in ordered if time_of(answer.completion_id) <= received_at]
    return before[-1] if before and len(before) < len(ordered) else None


class Succession(NamedTuple):
    """An answer that came next in the session of another."""

    record: Generation
    before: Answer


def names_of(record: Generation) -> list[KeyName]:
    """The keys of a user's answer. Those that no table takes are none: they were too long, or hold a NUL."""
    if record.purpose != "user":
        return []
    given = (("key", record.join_key), (SESSION, record.session_id))
    return [
        KeyName(record.tenant, kind, value)
        for kind, value in given
        if value and len(value) <= MAX_KEY and "\0" not in value
    ]


def assign(meant: dict[KeyName, Answer], records: Iterable[Generation]) -> list[Succession]:
    """Make `meant` say which answer each key means, now that `records` arrived; returns who came after whom."""
    successions = []
    for record in records:
        answer = Answer(record.completion_id, record.choice)
        for name in names_of(record):
            before = meant.get(name)
            if before is not None and before.age >= answer.age:
                continue
            meant[name] = answer
            if name.kind == SESSION and before is not None and before.completion_id != answer.completion_id:
                successions.append(Succession(record, before))
    return successions


def follow_up_name(task: Task | None) -> str | None:
    """The signal of a task that takes a user's next message, if there is one."""
    rules = task.signals.items() if task else ()
    return next((name for name, rule in rules if rule.means == "follow_up" and rule.type == "text"), None)


def follow_up(succession: Succession, before: Generation, task: Task) -> Signal | None:
    """What a user's next message says about the answer before it, as a signal.

    None if the task does not listen, if that answer was of another one, or if the user said nothing new: the same
    conversation sent again asks for another answer, and is no reply to this one. Neither is what answers a later turn,
    which nobody was allowed to keep.
    """
    record, name = succession.record, follow_up_name(task)
    if name is None or before.task != record.task or before.tenant != record.tenant:
        return None
    try:
        messages, earlier = record.open().messages, before.open()
    except InvalidRecord:
        return None  # nobody knows what was said; rewards refuses the damaged one by name
    text = _last_words(messages)
    if not text or messages == earlier.messages or _was_answered_since(messages, earlier.text):
        return None
    return Signal(
        id=f"follow_up:{sample_key(before.completion_id, before.choice)}",
        completion_id=before.completion_id,
        choice=before.choice,
        name=name,
        value=text[:MAX_FOLLOW_UP],
        at=record.created_at,
        received_at=record.created_at,
        tenant=record.tenant,
        submitter=Submitter(id=_speaker(record), kind="code"),
    )


def _was_answered_since(messages: list[dict[str, Any]], answer: str) -> bool:
    """True if the conversation shows the answer, and another one after it."""
    answers = [str(message.get("content")).strip() for message in messages if message.get("role") == "assistant"]
    return answer.strip() in answers[:-1] and answers[-1] != answer.strip()


def _last_words(messages: list[dict[str, Any]]) -> str:
    said = [message.get("content") for message in messages if message.get("role") == "user"]
    return said[-1] if said and isinstance(said[-1], str) else ""


def _speaker(record: Generation) -> str:
    person = record.person or ""
    return person[:_MAX_SUBMITTER] if person and "\0" not in person else "follow_up"
