"""What operators do with dead letters: list, redrive, skip.

In: rows of `dead_letter`. Out: their new state, and messages to the log, through an outbox. Waits for: nothing.

Redriving appends the original bytes to the end of the same partition, under the same key. Every consumer recognizes a record by its own
key, so one that was handled meanwhile is handled once. Redriving cannot repair bytes, or put a record before the ones that came after it.

Skipping accepts the loss. A sample that waits for the record becomes `unscored(dead_letter)`, a signal `rejected(dead_letter)`; a
generation is counted as `dead_letter`. Outcomes of the trainer stay as they are: they are in its checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, update

from contracts.errors import Conflict, InvalidRecord, InvalidRequest, NotFound
from contracts.event_log import Message
from contracts.ids import parse_sample_key
from contracts.ledger import PENDING, effective_state
from contracts.record_checks import MAX_ID, is_sample_key, problem_of
from contracts.records import Episode, Experience, Generation, Outcome, Record, Signal, decode_shape
from contracts.tables import dead_letter, generation, received_signal, signal
from contracts.tables.statements import insert_new
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS, TOPICS
from runtime.log.dead_letters import OPEN, REDRIVEN, SKIPPED
from runtime.log.loss_detection import EVIDENCE
from runtime.log.outbox import message, put

SENDER = "dead-letters"
"""Name of the outbox through which `redrive` and `skip` send."""
DEAD_LETTER = "dead_letter"
KINDS: dict[str, type[Record]] = {
    GENERATIONS: Generation,
    SIGNALS: Signal,
    EPISODES: Episode,
    EXPERIENCES: Experience,
    OUTCOMES: Outcome,
}
_PLACE = re.compile(r"(\w+)/(\d+)@(-?\d+)").fullmatch


class RecordPlace(NamedTuple):
    """Position of a record in the log. A negative offset means that the log never took it."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class DeadLetter(NamedTuple):
    """A dead letter. Times are UTC epoch seconds."""

    process: str
    place: RecordPlace
    reason: str
    traceback: str | None
    key: str | None
    value: bytes
    at: float
    state: str
    settled_at: float | None


def parse_place(text: str) -> RecordPlace:
    """Parse `TOPIC/PARTITION@OFFSET`. Raises InvalidRequest: the text has another form."""
    found = _PLACE(text)
    if found is None or found[1] not in TOPICS:
        raise InvalidRequest(
            f"{text!r} is not a record's position; write TOPIC/PARTITION@OFFSET as `millrace dead-letters list` does, with one of "
            f"the topics {', '.join(TOPICS)}"
        )
    return RecordPlace(found[1], int(found[2]), int(found[3]))


def find(
    connection: Connection,
    *,
    process: str | None = None,
    topic: str | None = None,
    place: RecordPlace | None = None,
    states: Collection[str] = (OPEN,),
) -> list[DeadLetter]:
    """Dead letters that match, oldest first."""
    columns = dead_letter.c
    which: list[ColumnElement[bool]] = [columns.state.in_(sorted(states))]
    which += [columns.consumer_group == process] if process is not None else []
    which += [columns.topic == topic] if topic is not None else []
    which += [_is_at(place)] if place is not None else []
    wanted = select(dead_letter).where(*which).order_by(columns.at, columns.topic, columns.partition, columns.offset)
    return [_letter(row) for row in connection.execute(wanted)]


def get(connection: Connection, process: str, place: RecordPlace) -> DeadLetter:
    """One dead letter. Raises NotFound: it does not exist."""
    found = find(connection, process=process, place=place, states=(OPEN, SKIPPED, REDRIVEN))
    if not found:
        raise NotFound(f"{process} has no dead letter {place}; millrace dead-letters list --all shows all of them")
    return found[0]


def redrive(connection: Connection, letters: Sequence[DeadLetter], now: float) -> None:
    """Send the original bytes again, and mark the dead letters as redriven.

    Raises Conflict: one was redriven already, or cannot be redriven; nothing was changed.
    """
    for letter in letters:
        if problem := _no_redrive(letter):
            raise Conflict(f"{letter.place} of {letter.process} {problem}")
        _settle(connection, letter, REDRIVEN, now)
        if letter.state == SKIPPED and isinstance(record := decoded(letter), Signal):
            # The join will add a new row for it.
            mine = (signal.c.completion_id == "", signal.c.tenant == record.tenant, signal.c.id == record.id)
            connection.execute(signal.delete().where(*mine, signal.c.reason == DEAD_LETTER))
        topic, partition, _ = letter.place
        put(connection, SENDER, [Message(topic, partition, letter.key or "", letter.value)])


def skip(connection: Connection, letters: Sequence[DeadLetter], now: float) -> None:
    """Accept the loss: they stay listed and no longer count towards the limits; samples that wait for them get a final state.

    Raises Conflict: one is not open; nothing was changed.
    """
    for letter in letters:
        if letter.state != OPEN:
            raise Conflict(f"{letter.place} of {letter.process} was already {letter.state}")
        _settle(connection, letter, SKIPPED, now)
        record = decoded(letter)
        if letter.process == EVIDENCE:
            continue  # no sample waits for what a train compares
        if letter.place.topic == SIGNALS:
            _reject(connection, record)
        elif letter.place.topic != GENERATIONS:
            put(connection, SENDER, _final_words(connection, letter, record, now))


def decoded(letter: DeadLetter) -> Record | None:
    """The decoded record, with unchecked values; None if the bytes cannot be decoded."""
    try:
        return decode_shape(KINDS[letter.place.topic], letter.value)
    except InvalidRecord:
        return None


def _no_redrive(letter: DeadLetter) -> str:
    if letter.state == REDRIVEN:
        return "was already redriven; if it failed again, it is a dead letter at another position"
    if letter.place.offset < 0:
        return "was never in the log, because it is too large: skip it"
    if len(letter.key or "") > MAX_ID:
        return f"has a key of {len(letter.key or '')} characters, longer than any valid key: skip it"
    return ""


def _settle(connection: Connection, letter: DeadLetter, state: str, now: float) -> None:
    here = (dead_letter.c.consumer_group == letter.process, _is_at(letter.place), dead_letter.c.state == letter.state)
    if connection.execute(update(dead_letter).where(*here).values(state=state, settled_at=now)).rowcount != 1:
        raise Conflict(f"somebody else just changed {letter.place} of {letter.process}; list the dead letters again")


def _reject(connection: Connection, record: Record | None) -> None:
    """Add a signal row without a completion, as for all signals whose answer will never be known."""
    if not isinstance(record, Signal) or problem_of(record):
        return  # feedback never accepted such a signal, so no app expects it
    name = {"tenant": record.tenant, "id": record.id}
    accepted = select(received_signal.c.record).where(*(received_signal.c[column] == name[column] for column in name))
    seen = select(signal.c.id).where(*(signal.c[column] == name[column] for column in name))
    stored = connection.execute(accepted).scalar_one_or_none()
    if stored is None or connection.execute(seen).first() is not None:
        return
    details = {"choice": record.choice, "name": record.name, "submitter": record.submitter.id, "at": record.at}
    state = {"received_at": record.received_at, "state": "rejected", "reason": DEAD_LETTER, "record": stored}
    insert_new(connection, signal, {"completion_id": "", **name, **details, **state})


def _final_words(connection: Connection, letter: DeadLetter, record: Record | None, now: float) -> list[Message]:
    """The final outcome of the sample that waits for this record; empty if another process decides it."""
    if isinstance(record, Outcome) and record.writer == "training":
        return []
    key = getattr(record, "key", None) or letter.key or ""
    if not is_sample_key(key):
        return []
    completion_id, choice = parse_sample_key(key)
    here = (generation.c.completion_id == completion_id, generation.c.choice == choice)
    state = select(generation.c.revision, effective_state().label("state")).where(*here)
    row = connection.execute(state).one_or_none()
    if row is None or row.state != PENDING:
        return []
    why: dict[str, Any] = {"state": "unscored", "reason": DEAD_LETTER, "writer": "rewards"}
    outcome = Outcome(key=key, revision=getattr(record, "revision", row.revision), epoch=0, at=now, **why)
    return [] if problem_of(outcome) else [message(OUTCOMES, key, outcome)]


def _is_at(place: RecordPlace) -> ColumnElement[bool]:
    columns = dead_letter.c
    return (columns.topic == place.topic) & (columns.partition == place.partition) & (columns.offset == place.offset)


def _letter(row: Any) -> DeadLetter:
    place = RecordPlace(row.topic, row.partition, row.offset)
    return DeadLetter(
        row.consumer_group, place, row.reason, row.traceback, row.key, row.value, row.at, row.state, row.settled_at
    )
