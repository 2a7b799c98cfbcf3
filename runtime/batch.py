"""A batch as a worker holds it: each record with its decoded item, or with the reason why it will be buried.

In: polled records. Out: the same in their order, read and prepared. Waits for: the handler's `prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from contracts.event_log import LogRecord
from runtime.bisection import Blamed, bisect, blaming_records
from runtime.log.dead_letters import Culprit, culprit_of

Item = TypeVar("Item")


class BatchRecord(NamedTuple, Generic[Item]):
    """A record, and either its item or the reason why it cannot be processed."""

    record: LogRecord
    item: Item | None = None
    culprit: Culprit | None = None


class Preparer(Protocol[Item]):
    """The methods of a handler that need no transaction; see `runtime.worker.Handler`."""

    def read(self, record: LogRecord) -> Item:
        """Decode a record."""

    def prepare(self, items: Sequence[Item]) -> Sequence[Item]:
        """Do slow work."""


def prepare_batch(handler: Preparer[Item], records: Sequence[LogRecord]) -> list[BatchRecord[Item]]:
    """Read and prepare every record that allows it; the others get a culprit."""
    parts = [_read(handler, record) for record in records]

    def prepare(places: Sequence[int]) -> None:
        with blaming_records():
            items = handler.prepare(items_of([parts[place] for place in places]))
        for place, item in zip(places, items, strict=True):
            parts[place] = parts[place]._replace(item=item)

    def give_up(place: int, error: BaseException) -> None:
        parts[place] = _buried(parts[place].record, error)

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


def culprits_of(parts: Sequence[BatchRecord[Item]]) -> list[Culprit]:
    """Records to bury."""
    return [part.culprit for part in parts if part.culprit is not None]


def _buried(record: LogRecord, error: BaseException) -> BatchRecord[Item]:
    return BatchRecord(record, culprit=culprit_of(record, error))


def _read(handler: Preparer[Item], record: LogRecord) -> BatchRecord[Item]:
    try:
        with blaming_records():
            return BatchRecord(record, handler.read(record))
    except Blamed as blamed:
        return _buried(record, blamed.__cause__ or blamed)
