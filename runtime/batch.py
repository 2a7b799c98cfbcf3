"""What a worker drives, and a batch as it holds it: each record with its item, or with the reason why it will be buried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

from contracts.event_log import LogRecord, Message
from runtime.bisection import Blamed, bisect, blaming_records
from runtime.log.dead_letters import Culprit, culprit_of

Item = TypeVar("Item")


class BatchRecord(NamedTuple, Generic[Item]):
    """A record, and either its item or the reason why it cannot be processed."""

    record: LogRecord
    item: Item | None = None
    culprit: Culprit | None = None


class Handler(Protocol[Item]):
    """The work of one process, inside a transaction. It never touches the log."""

    @property
    def name(self) -> str:
        """Name of the process, which is also its consumer group."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that it reads."""

    @property
    def batch_size(self) -> int:
        """Most records in one batch."""

    def read(self, record: LogRecord) -> Item:
        """Decode a record. Raises InvalidRecord for a record that can never be read."""

    def prepare(self, items: Sequence[Item]) -> Sequence[Item]:
        """Do slow work without a transaction; one item for each, in the same order. The items may be delivered again."""

    def handle(self, connection: Connection, items: Sequence[Item]) -> list[Message]:
        """Apply each item once, in this order, in a few statements for the whole batch; returns the messages to send."""

    def tick(
        self, connection: Connection, now: float, partitions: frozenset[int], *, is_at_end: bool = True
    ) -> list[Message]:
        """Apply the passing of time to these partitions, by default nothing. `is_at_end`: the last poll returned every record that the log has."""
        del connection, now, partitions, is_at_end
        return []


def prepare_batch(handler: Handler[Item], records: Sequence[LogRecord]) -> list[BatchRecord[Item]]:
    """Read and prepare every record that allows it; the others get a culprit."""
    parts = [_read(handler, record) for record in records]

    def prepare(places: Sequence[int]) -> None:
        with blaming_records():
            items = handler.prepare(items_of([parts[place] for place in places]))
        for place, item in zip(places, items, strict=True):
            parts[place] = parts[place]._replace(item=item)

    def give_up(place: int, error: BaseException) -> None:
        parts[place] = BatchRecord(parts[place].record, culprit=culprit_of(parts[place].record, error))

    sound = [place for place, part in enumerate(parts) if part.culprit is None]
    try:
        prepare(sound)
    except Blamed as blamed:
        if not sound:
            raise  # there is no record to blame
        bisect(sound, prepare, give_up, blamed.__cause__ or blamed)
    return parts


def items_of(parts: Sequence[BatchRecord[Item]]) -> list[Item]:
    """Items of the records that can be processed."""
    return [part.item for part in parts if part.item is not None]


def _read(handler: Handler[Item], record: LogRecord) -> BatchRecord[Item]:
    try:
        with blaming_records():
            return BatchRecord(record, handler.read(record))
    except Blamed as blamed:
        return BatchRecord(record, culprit=culprit_of(record, blamed.__cause__ or blamed))
