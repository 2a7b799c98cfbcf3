"""Which answer a key means, and what the next message of a session says about the answer before it. Pure.

If several answers have the same key, it means the newest: a session moves on with every turn, and a join key that is used again
means the later answer. The order of arrival does not matter.

The calls of a session are a tree: each goes on from a parent or begins anew. A session's signal is about the work that was done, so it is
about the longest chain of parents, its main line; a title, a summary, a sub-agent or a retry is not on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from contracts.errors import InvalidRecord
from contracts.ids import sample_key, time_of
from contracts.records import Generation, Signal, Submitter
from contracts.tables import MAX_KEY
from contracts.tasks import Task
from contracts.turns import SessionShare

MAX_FOLLOW_UP = 2_000
_MAX_SUBMITTER = 128
SESSION = "session"


class KeyName(NamedTuple):
    """`kind`: "key" or "session"."""

    tenant: str
    kind: str
    value: str


class AnswerRef(NamedTuple):
    """One choice of one completion."""

    completion_id: str
    choice: int

    @property
    def age(self) -> tuple[str, int]:
        """Sorts answers by time, with which completion ids begin; of one completion the first choice is the newest."""
        return self.completion_id, -self.choice


def answer_at(answers: Iterable[AnswerRef], received_at: float) -> AnswerRef | None:
    """The last answer of a session at the time of a signal about it, if a later answer shows that no other came between.

    None if the session had no answer yet, or if the last one may not have been read yet.
    """
    ordered = sorted(answers, key=lambda answer: answer.age)
    before = [answer for answer in ordered if time_of(answer.completion_id) <= received_at]
    return before[-1] if before and len(before) < len(ordered) else None


class Succession(NamedTuple):
    """An answer, and the one before it in the same session."""

    record: Generation
    before: AnswerRef


def names_of(record: Generation) -> list[KeyName]:
    """The keys of a user's answer, without those that the database cannot store: too long, or with a NUL."""
    if record.purpose != "user":
        return []
    given = (("key", record.join_key), (SESSION, record.session_id))
    return [
        KeyName(record.tenant, kind, value)
        for kind, value in given
        if value and len(value) <= MAX_KEY and "\0" not in value
    ]


def session_of(record: Generation) -> KeyName | None:
    """The session of a user's answer; None if it has none, or one that cannot be stored."""
    return next((name for name in names_of(record) if name.kind == SESSION), None)


def assign(meant: dict[KeyName, AnswerRef], records: Iterable[Generation]) -> list[Succession]:
    """Update `meant`, the answer of each key, with answers that arrived; returns the successions in sessions."""
    successions = []
    for record in records:
        answer = AnswerRef(record.completion_id, record.choice)
        for name in names_of(record):
            before = meant.get(name)
            if before is not None and before.age >= answer.age:
                continue
            meant[name] = answer
            if name.kind == SESSION and before is not None and before.completion_id != answer.completion_id:
                successions.append(Succession(record, before))
    return successions


def follow_up_name(task: Task | None) -> str | None:
    """The name of the task's signal for the user's next message; None if it declares no such signal."""
    rules = task.signals.items() if task else ()
    return next((name for name, rule in rules if rule.means == "follow_up" and rule.type == "text"), None)


def follow_up(succession: Succession, before: Generation, task: Task) -> Signal | None:
    """The user's next message as a signal about the answer before it.

    None if the task declares no such signal, if the earlier answer belongs to another task, or if the message is no reply to
    it: the same conversation was sent again, or the message replies to a later answer that was not stored.
    """
    record, name = succession.record, follow_up_name(task)
    if name is None or before.task != record.task or before.tenant != record.tenant:
        return None
    try:
        messages, earlier = record.open().messages, before.open()
    except InvalidRecord:
        return None  # the messages are unknown; rewards reports the damaged body
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
    """True if the conversation contains the answer, and another one after it."""
    answers = [str(message.get("content")).strip() for message in messages if message.get("role") == "assistant"]
    return answer.strip() in answers[:-1] and answers[-1] != answer.strip()


def _last_words(messages: list[dict[str, Any]]) -> str:
    said = [message.get("content") for message in messages if message.get("role") == "user"]
    return said[-1] if said and isinstance(said[-1], str) else ""


def _speaker(record: Generation) -> str:
    person = record.person or ""
    return person[:_MAX_SUBMITTER] if person and "\0" not in person else "follow_up"


class SessionCall(NamedTuple):
    """A call of a session. `parent`: the call that it goes on from, or branches off. `is_cut`: nobody has its whole answer.

    `ended_at`: UTC epoch seconds.
    """

    answer: AnswerRef
    parent: AnswerRef | None
    task: str
    ended_at: float
    is_cut: bool = False


class LinePart(NamedTuple):
    """A call that a session's signal reaches, and its share."""

    answer: AnswerRef
    share: SessionShare


def main_line(calls: Sequence[SessionCall]) -> list[AnswerRef]:
    """The longest chain of parents that ends with a whole answer, the root first; of equally long ones, the one that ends last.

    A parent that is not among the calls, or that has another task, begins a chain. Parents are always older than their children;
    a record that says otherwise begins a chain too.
    """
    known = {call.answer: call for call in calls}
    parents: dict[AnswerRef, AnswerRef | None] = {}
    depth: dict[AnswerRef, int] = {}
    for call in sorted(calls, key=lambda each: each.answer.age):
        parent = known.get(call.parent) if call.parent else None
        is_real = parent is not None and parent.task == call.task and parent.answer in depth
        parents[call.answer] = call.parent if is_real else None
        depth[call.answer] = 1 + (depth[parent.answer] if parent is not None and is_real else 0)
    line: list[AnswerRef] = []
    whole = [answer for answer in depth if not known[answer].is_cut]
    at = max(whole, key=lambda answer: (depth[answer], answer.age), default=None)
    while at is not None:
        line.append(at)
        at = parents[at]
    return line[::-1]


def parts_of(
    session: str, calls: Sequence[SessionCall], tasks: Mapping[str, Task], received_at: float
) -> list[LinePart]:
    """The calls that a signal reaches, in order; the last one is the one that the signal is about.

    `calls`: all that are known; those after `received_at` are not reached. Nothing if the task of the main line has no [credit]: the signal
    is about the newest answer then.
    """
    before = [call for call in calls if time_of(call.answer.completion_id) <= received_at]
    line = main_line(before)
    if not line:
        return []
    last = next(call for call in before if call.answer == line[-1])
    task = tasks.get(last.task)
    if task is None or task.credit is None:
        return []
    oldest = received_at - task.credit.longest_seconds
    reached = [answer for answer in line if answer == last.answer or time_of(answer.completion_id) >= oldest]
    credits_ = [task.credit.of(index, len(reached)) for index in range(len(reached))]
    return [
        LinePart(answer, SessionShare(session, sample_key(*last.answer), index, len(reached), credit, last.ended_at))
        for index, (answer, credit) in enumerate(zip(reached, credits_, strict=True))
        if credit > 0.0
    ]
