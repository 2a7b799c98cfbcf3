"""Takes signals in: durable before they are acknowledged.

In: items of apps. Out: rows and outbox messages, in one transaction, then a wake-up of the relay. Waits: for the
database's one writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from contracts.database import Database
from contracts.errors import Conflict, InvalidRequest, MillraceError, NotFound
from contracts.tasks import Task
from services.feedback import repository
from services.feedback.relaying import RelayThread
from services.feedback.requests import Received, read_item


class Accepted(msgspec.Struct, frozen=True):
    """The acknowledgement of one item. `received_at`: UTC epoch seconds."""

    id: str
    state: str
    received_at: float


class Desk:
    """See the module. Every method is one transaction."""

    def __init__(self, database: Database, tasks: Mapping[str, Task], relay: RelayThread) -> None:
        self._database = database
        self._tasks = tasks
        self._relay = relay
        self._writing = threading.Lock()  # threads take turns here; SQLite would let them sleep and try again

    def submit(self, items: Sequence[Any], tenant: str) -> list[Accepted | MillraceError]:
        """Take items in, each on its own: what is refused does not hold up the others.

        Raises:
            Unavailable: nothing was taken in.
        """
        now = time.time()
        read = [self._read(item, tenant, now) for item in items]
        with self._writing, self._database.transaction() as connection:
            results = [
                item if isinstance(item, InvalidRequest) else _result(item, *repository.add(connection, item))
                for item in read
            ]
            if num_rejected := sum(isinstance(item, InvalidRequest) for item in read):
                repository.count(connection, "rejected", num_rejected)
        self._relay.wake()
        return results

    def reject(self, num: int) -> None:
        """Count items that were refused unread."""
        with self._writing, self._database.transaction() as connection:
            repository.count(connection, "rejected", num)

    def show(self, signal_id: str, tenant: str) -> dict[str, Any]:
        """A signal and what became of it.

        Raises:
            NotFound: this tenant sent no such signal.
        """
        with self._database.snapshot() as connection:
            stored = repository.find(connection, tenant, signal_id)
            joined = stored and repository.find_joined(connection, stored.signal)
        if stored is None:
            raise _unknown(signal_id)
        state = "retracted" if stored.retracted_at is not None else joined.state if joined else "pending"
        record = stored.signal
        return {
            "id": record.id,
            "state": state,
            "reason": joined.reason if joined else "",
            "revision": joined.revision if joined else None,
            "completion_id": record.completion_id,
            "choice": record.choice,
            "name": record.name,
            "value": record.value,
            "correction": record.correction,
            "submitter": record.submitter,
            "at": record.at,
            "received_at": record.received_at,
            "retracted_at": stored.retracted_at,
        }

    def retract(self, signal_id: str, tenant: str) -> dict[str, Any]:
        """Take a signal back; its history stays. Doing it twice changes nothing.

        Raises:
            NotFound: this tenant sent no such signal.
            Unavailable: it still stands.
        """
        now = time.time()
        with self._writing, self._database.transaction() as connection:
            stored = repository.find(connection, tenant, signal_id)
            if stored is None:
                raise _unknown(signal_id)
            if stored.retracted_at is None:
                retraction = msgspec.structs.replace(stored.signal, retracted=True)
                repository.retract(connection, retraction, now)
        self._relay.wake()
        return {"id": signal_id, "state": "retracted", "retracted_at": stored.retracted_at or now}

    def _read(self, item: Any, tenant: str, now: float) -> Received | InvalidRequest:
        try:
            return read_item(item, self._tasks, tenant, now)
        except InvalidRequest as error:
            return error


def _result(received: Received, fate: repository.Fate, received_at: float) -> Accepted | MillraceError:
    signal_id = received.signal.id
    if fate == "conflict":
        return Conflict(f"the id {signal_id!r} was used for other content; send a new one", param="id")
    return Accepted(signal_id, fate, received_at)


def _unknown(signal_id: str) -> NotFound:
    return NotFound(f"no signal {signal_id!r} was received with this key's tenant", param="id")
