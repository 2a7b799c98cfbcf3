"""Attacks with thousands of signals about one answer: an app with a key, inside its limits, against everybody else.

In: nothing. Out: what got through. Waits for: nothing; each attack has a database of its own. How long things take is measured by
`benchmarks.flood`; here rows are counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from contracts.event_log import LogRecord, Message
from contracts.ledger import rejection_counts, signal_counts
from contracts.records import Episode, Generation, Record, Signal, Submitter, decode, encode
from contracts.tables import received_signal
from contracts.tables.statements import insert_all_new
from contracts.tasks import Task
from contracts.topics import EPISODES, GENERATIONS, SIGNALS
from pipelines.episodes import repository
from pipelines.episodes.handler import EpisodesHandler
from pipelines.episodes.join import MOST_OF_ANSWER, MOST_OF_SUBMITTER, TOO_MANY
from runtime.database import Database
from runtime.days import migrate
from tests.adversary.attacks.attack import Attack
from tests.worlds.signals import an_answer, signals_about

_TASK = Task.model_validate(
    {"name": "reservations", "window_seconds": 600, "signals": {"accepted": {"type": "bool", "labels": {"true": 1.0}}}}
)
_MANY, _AT_ONCE = 10_000, 500
_TOPICS: dict[type[Record], str] = {Generation: GENERATIONS, Signal: SIGNALS}


def attacks() -> list[Attack]:
    """See the module docstring."""
    return [
        Attack("10,000 signals about one answer", flood_one, 2),
        Attack("10,000 signals before their answer", flood_early),
        Attack("one submitter shuts the others out", shut_out),
        Attack("a flood that takes itself back", take_back),
    ]


def flood_one() -> str | None:
    """A revision for each signal, or a join that reads all of them for each more."""
    with _a_join() as join:
        about = an_answer(1)
        join.hear(about)
        sizes = join.hear(*signals_about(about, _MANY))
        if len(sizes) > _MANY // _AT_ONCE or max(sizes) > MOST_OF_ANSWER:
            return f"{len(sizes)} revisions with up to {max(sizes)} signals"
        if join.hear(*signals_about(about, _AT_ONCE, _MANY)):
            return "a signal that does not count made a revision"
        return join.unnamed(about, _MANY + _AT_ONCE)


def flood_early() -> str | None:
    """They wait for an answer that then comes."""
    with _a_join() as join:
        about = an_answer(2)
        join.hear(*signals_about(about, _MANY))
        sizes = join.hear(about)
        return join.unnamed(about, _MANY) or (None if sizes == [MOST_OF_ANSWER] else f"episodes of {sizes}")


def shut_out() -> str | None:
    """After a flood of one, another's single word."""
    with _a_join() as join:
        about = an_answer(3)
        loud = [replace(said, submitter=Submitter(id="loud")) for said in signals_about(about, _MANY)]
        join.hear(about, *loud)
        said = replace(next(signals_about(about, 1, _MANY)), submitter=Submitter(id="quiet"))
        sizes = join.hear(said)
        return None if sizes == [MOST_OF_SUBMITTER + 1] else f"the other's word is not in {sizes}"


def take_back() -> str | None:
    """What was retracted gives its place to new words, but there are no more places, and one revision for a batch."""
    with _a_join() as join:
        about = an_answer(4)
        flood = list(signals_about(about, 2_000))
        join.hear(about, *flood)
        join.hear(*(replace(said, retracted=True) for said in flood))
        if len(made := join.hear(*signals_about(about, _AT_ONCE, _MANY))) > 1:
            return f"a batch made {len(made)} revisions"
        return None if join.num_read(about) == MOST_OF_ANSWER else f"{join.num_read(about)} signals are read again"


class _Join:
    """The join of one database, without a log."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._handler = EpisodesHandler({_TASK.name: _TASK}, time.time)

    def hear(self, *records: Record) -> list[int]:
        """Process records in batches; returns how many signals each episode has."""
        found: list[int] = []
        for start in range(0, len(records), _AT_ONCE):
            some = records[start : start + _AT_ONCE]
            wires = [LogRecord(_TOPICS[type(record)], 0, 0, "", encode(record), 0.0) for record in some]
            with self._database.transaction() as connection:
                insert_all_new(
                    connection, received_signal, [_row(record) for record in some if isinstance(record, Signal)]
                )
                found += _sizes(self._handler.handle(connection, [self._handler.read(wire) for wire in wires]))
        return found

    def num_read(self, about: Generation) -> int:
        """How many signals the join reads for one more about this answer."""
        with self._database.snapshot() as connection:
            return len(list(repository.heard(connection, {about.completion_id})))

    def unnamed(self, about: Generation, num: int) -> str | None:
        """What is wrong with the states of so many signals about an answer."""
        with self._database.snapshot() as connection:
            counts, reasons = signal_counts(connection), rejection_counts(connection)
        if counts.unexplained or counts.total != num or reasons != {TOO_MANY: num - MOST_OF_ANSWER}:
            return f"{num} signals are {counts.states}, rejected {reasons}"
        return (
            None if self.num_read(about) == MOST_OF_ANSWER else f"{self.num_read(about)} signals are read for one more"
        )


def _row(said: Signal) -> dict[str, object]:
    row = {"tenant": said.tenant, "id": said.id, "received_at": said.received_at, "record": encode(said)}
    return row | {"body_hash": said.id[-64:]}


def _sizes(messages: Sequence[Message]) -> list[int]:
    return [len(decode(Episode, item.value).signals) for item in messages if item.topic == EPISODES]


@contextmanager
def _a_join() -> Iterator[_Join]:
    with tempfile.TemporaryDirectory(prefix="millrace-attack-") as folder:
        database = Database(f"sqlite:///{Path(folder) / 'millrace.db'}")
        migrate(database)
        try:
            yield _Join(database)
        finally:
            database.close()
