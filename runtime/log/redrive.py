"""What operators do with dead letters: look, redrive, skip.

In: rows of `dead_letter`. Out: their new state, and through an outbox what the log is told of it. Waits for: nothing.

Redriving appends the original bytes to the end of the same partition, under the same key. Positions stay as they are, and
every consumer knows records by their own names: a generation and an episode's revision by key, a signal by id, an outcome by
(key, revision, epoch, state). So what was handled meanwhile is handled once, however often it is redriven. What redriving cannot
do: mend the bytes, or put a record back before those that came after it; one that fails again is buried again, at its new place.

Skipping says that the loss is accepted. A sample that still waits for the record becomes `unscored(dead_letter)`, a signal
`rejected(dead_letter)`; a generation is counted as `dead_letter`. What the trainer told is left alone: its checkpoint holds it.
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
    """Where a record lies; a negative offset means that the log never took it."""

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
    """Read `TOPIC/PARTITION@OFFSET`.

    Raises:
        InvalidRequest: it is none.
    """
    found = _PLACE(text)
    if found is None or found[1] not in TOPICS:
        raise InvalidRequest(
            f"{text!r} is no place; write TOPIC/PARTITION@OFFSET as `millrace dead-letters list` does, with a topic of "
            f"{', '.join(TOPICS)}"
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
    """Dead letters, the oldest first."""
    columns = dead_letter.c
    which: list[ColumnElement[bool]] = [columns.state.in_(sorted(states))]
    which += [columns.consumer_group == process] if process is not None else []
    which += [columns.topic == topic] if topic is not None else []
    which += [_is_at(place)] if place is not None else []
    order = (columns.at, columns.topic, columns.partition, columns.offset)
    return [_letter(row) for row in connection.execute(select(dead_letter).where(*which).order_by(*order))]


def get(connection: Connection, process: str, place: RecordPlace) -> DeadLetter:
    """One of them.

    Raises:
        NotFound: there is none.
    """
    found = find(connection, process=process, place=place, states=(OPEN, SKIPPED, REDRIVEN))
    if not found:
        raise NotFound(f"{process} has no dead letter {place}; millrace dead-letters list --all shows what there is")
    return found[0]


def redrive(connection: Connection, letters: Sequence[DeadLetter], now: float) -> None:
    """Send the original bytes again, and remember that they were.

    Raises:
        Conflict: one was redriven already, or cannot be; nothing was changed.
    """
    for letter in letters:
        if problem := _no_redrive(letter):
            raise Conflict(f"{letter.place} of {letter.process} {problem}")
        _settle(connection, letter, REDRIVEN, now)
        if letter.state == SKIPPED and isinstance(record := decoded(letter), Signal):
            # It gets a row of its own again, once it is joined.
            mine = (signal.c.completion_id == "", signal.c.tenant == record.tenant, signal.c.id == record.id)
            connection.execute(signal.delete().where(*mine, signal.c.reason == DEAD_LETTER))
        topic, partition, _ = letter.place
        put(connection, SENDER, [Message(topic, partition, letter.key or "", letter.value)])


def skip(connection: Connection, letters: Sequence[DeadLetter], now: float) -> None:
    """Accept the loss: they leave the limits' count, stay for looking, and what waits for them gets its final state.

    Raises:
        Conflict: one was dealt with already; nothing was changed.
    """
    for letter in letters:
        if letter.state != OPEN:
            raise Conflict(f"{letter.place} of {letter.process} was {letter.state} already")
        _settle(connection, letter, SKIPPED, now)
        record = decoded(letter)
        if letter.place.topic == SIGNALS:
            _reject(connection, record)
        elif letter.place.topic != GENERATIONS:
            put(connection, SENDER, _final_words(connection, letter, record, now))


def decoded(letter: DeadLetter) -> Record | None:
    """What its bytes say, whatever the values are; None if they are no record."""
    try:
        return decode_shape(KINDS[letter.place.topic], letter.value)
    except InvalidRecord:
        return None


def _no_redrive(letter: DeadLetter) -> str:
    if letter.state == REDRIVEN:
        return "was redriven already; if it failed again, it is a dead letter at another place"
    if letter.place.offset < 0:
        return "was never in the log, which refuses it for its size: skip it"
    if len(letter.key or "") > MAX_ID:
        return f"has a key of {len(letter.key or '')} characters, which none of our records has: skip it"
    return ""


def _settle(connection: Connection, letter: DeadLetter, state: str, now: float) -> None:
    here = (dead_letter.c.consumer_group == letter.process, _is_at(letter.place), dead_letter.c.state == letter.state)
    if connection.execute(update(dead_letter).where(*here).values(state=state, settled_at=now)).rowcount != 1:
        raise Conflict(f"somebody else dealt with {letter.place} of {letter.process} just now; look again")


def _reject(connection: Connection, record: Record | None) -> None:
    """A row about no completion, as of all signals whose answer will never be known."""
    if not isinstance(record, Signal) or problem_of(record):
        return  # no app was told that it was accepted: feedback takes none of these
    name = {"tenant": record.tenant, "id": record.id}
    accepted = select(received_signal.c.record).where(*(received_signal.c[column] == name[column] for column in name))
    seen = select(signal.c.id).where(*(signal.c[column] == name[column] for column in name))
    stored = connection.execute(accepted).scalar_one_or_none()
    if stored is None or connection.execute(seen).first() is not None:
        return
    said = {"choice": record.choice, "name": record.name, "submitter": record.submitter.id, "at": record.at}
    state = {"received_at": record.received_at, "state": "rejected", "reason": DEAD_LETTER, "record": stored}
    insert_new(connection, signal, {"completion_id": "", **name, **said, **state})


def _final_words(connection: Connection, letter: DeadLetter, record: Record | None, now: float) -> list[Message]:
    """The state of the sample that waited for it; nothing if somebody else has named it, or will."""
    if isinstance(record, Outcome) and record.writer == "training":
        return []
    key = getattr(record, "key", None) or letter.key or ""
    if not is_sample_key(key):
        return []
    completion_id, choice = parse_sample_key(key)
    row = connection.execute(
        select(generation.c.revision, effective_state().label("state")).where(
            generation.c.completion_id == completion_id, generation.c.choice == choice
        )
    ).one_or_none()
    if row is None or row.state != PENDING:
        return []
    revision = getattr(record, "revision", row.revision)
    outcome = Outcome(
        key=key, revision=revision, epoch=0, state="unscored", reason=DEAD_LETTER, writer="rewards", at=now
    )
    return [] if problem_of(outcome) else [message(OUTCOMES, key, outcome)]


def _is_at(place: RecordPlace) -> ColumnElement[bool]:
    columns = dead_letter.c
    return (columns.topic == place.topic) & (columns.partition == place.partition) & (columns.offset == place.offset)


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(
        process=row.consumer_group,
        place=RecordPlace(row.topic, row.partition, row.offset),
        reason=row.reason,
        traceback=row.traceback,
        key=row.key,
        value=row.value,
        at=row.at,
        state=row.state,
        settled_at=row.settled_at,
    )
