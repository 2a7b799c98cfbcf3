"""Takes signals in: each is durable before it is acknowledged.

In: items from apps. Out: the result of each item. Waits for: the writer's next commit.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from contracts.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    MillraceError,
    NoSuchChoice,
    NotFound,
    ReceiptOver,
    Unavailable,
)
from contracts.keys import Caller
from contracts.tasks import Task
from runtime.database import Database
from services.feedback import repository
from services.feedback.repository import ItemResult, Retraction
from services.feedback.requests import ReceivedItem, read_item
from services.feedback.targets import TargetLimit
from services.feedback.writer import Submission, Writer
from services.http import read_json

_MANY_ITEMS = 20
_ANYTHING: type[Any] = Any
"""The shape of an item is checked later."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """The acknowledgement of one item. `received_at`: UTC epoch seconds."""

    id: str
    state: str
    received_at: float


class SignalIntake:
    """Reads, stores, shows and retracts signals; see the module."""

    def __init__(self, database: Database, tasks: Mapping[str, Task], writer: Writer) -> None:
        self._database, self._tasks = database, tasks
        self._writer, self._targets = writer, TargetLimit()

    async def submit(
        self, items: Sequence[Any], caller: Caller, num_bytes: int
    ) -> list[Acknowledgement | MillraceError]:
        """Take items in, as JSON or decoded, or the error that refuses one. A refused item does not affect the others. `num_bytes`: of all items.

        Raises Unavailable: no item was stored.
        """
        now = time.time()
        many = len(items) > _MANY_ITEMS  # reading them here would delay other requests
        read = await asyncio.to_thread(self._read, items, caller, now) if many else self._read(items, caller, now)
        return await self._store(read, caller, num_bytes)

    async def submit_within(
        self, item: Any, caller: Caller, num_bytes: int, ids: Sequence[str], at: float
    ) -> Acknowledgement | MillraceError:
        """Take one item in under the first of these ids that is free; the same content again has the id that it had.

        `at`: when it happened, UTC epoch seconds. Raises Unavailable: it was not stored.
        """
        [read] = self._read([item], caller, time.time())
        while True:
            placed = read if isinstance(read, MillraceError) else await asyncio.to_thread(self._placed, read, ids, at)
            [result] = await self._store([placed], caller, num_bytes)
            if not isinstance(result, Conflict):  # else another request took the id a moment ago
                return result

    async def _store(
        self, read: Sequence[ReceivedItem | MillraceError], caller: Caller, num_bytes: int
    ) -> list[Acknowledgement | MillraceError]:
        if caller.role != "operator":
            read = [item if isinstance(item, MillraceError) else self._targets.refusal(item) or item for item in read]
        received = [item for item in read if isinstance(item, ReceivedItem)]
        refused = Counter(item.code for item in read if isinstance(item, MillraceError))
        try:
            entries = iter(await self._writer.submit(Submission(received, num_bytes, refused)))
        except Unavailable:
            self._targets.give_back(received)
            raise
        return [item if isinstance(item, MillraceError) else _result(item, next(entries)) for item in read]

    async def reject(self, code: str, num: int = 1) -> None:
        """Count items that were refused without being read, by the code of their error."""
        await self._writer.submit(Submission((), 0, {code: num}))

    def show(self, signal_id: str, tenant: str) -> dict[str, Any]:
        """A signal and its state. Raises NotFound: this tenant sent no such signal."""
        if "\0" in signal_id:
            raise _unknown(signal_id)
        with self._database.snapshot() as connection:
            stored = repository.find(connection, tenant, signal_id)
            joined = stored and repository.find_joined(connection, stored.signal)
            key = repository.find_key(connection, tenant, signal_id)
        if stored is None:
            raise _unknown(signal_id)
        state, reason, revision = joined or ("pending", "", None)
        record = stored.signal
        return {
            "id": record.id,
            "state": state if stored.retracted_at is None else "retracted",
            "reason": reason,
            "revision": revision,
            "completion_id": record.completion_id or None,
            # What the client sent, while no completion is known for it.
            **({} if key is None else {"session_id" if key.kind == "session" else "join_key": key.value}),
            "choice": record.choice,
            "name": record.name,
            "value": record.value,
            "correction": record.correction,
            "comment": record.comment,
            "metadata": record.metadata,
            "submitter": record.submitter,
            "at": record.at,
            "received_at": record.received_at,
            "retracted_at": stored.retracted_at,
        }

    async def retract(self, signal_id: str, tenant: str) -> dict[str, Any]:
        """Retract a signal; its history stays. Idempotent. Raises NotFound: this tenant sent none; Unavailable: it was not retracted."""
        if "\0" in signal_id:
            raise _unknown(signal_id)
        retracted_at = await self._writer.retract(Retraction(tenant, signal_id, time.time()))
        if retracted_at is None:
            raise _unknown(signal_id)
        return {"id": signal_id, "state": "retracted", "retracted_at": retracted_at}

    def _placed(self, item: ReceivedItem, ids: Sequence[str], at: float) -> ReceivedItem | ReceiptOver:
        with self._database.snapshot() as connection:
            held = repository.find_hashes(connection, item.signal.tenant, ids)
        same = (name for name in ids if held.get(name) == item.body_hash)
        free = next(same, next((name for name in ids if name not in held), None))
        if free is None:
            return ReceiptOver(f"{len(ids)} signals came with receipts of this answer, which is all they are good for")
        return item._replace(signal=msgspec.structs.replace(item.signal, id=free, at=at))

    def _read(self, items: Sequence[Any], caller: Caller, now: float) -> list[ReceivedItem | MillraceError]:
        return [self._read_item(item, caller, now) for item in items]

    def _read_item(self, item: Any, caller: Caller, now: float) -> ReceivedItem | MillraceError:
        if isinstance(item, MillraceError):
            return item
        try:
            content = read_json(_ANYTHING, bytes(item)) if isinstance(item, msgspec.Raw) else item
            return read_item(content, self._tasks, caller.tenant, now, caller.role)
        except (InvalidRequest, Forbidden) as error:
            return error


def _result(received: ReceivedItem, entry: ItemResult) -> Acknowledgement | MillraceError:
    about = received.signal
    if entry.fate == "no_such_choice":
        return NoSuchChoice(f"{about.completion_id} has no choice {about.choice}; choices count from 0", param="choice")
    if entry.fate == "conflict":
        return Conflict(f"the id {about.id!r} was used for other content; send a new one", param="id")
    return Acknowledgement(about.id, entry.fate, entry.received_at)


def _unknown(signal_id: str) -> NotFound:
    return NotFound(f"this key's tenant sent no signal {signal_id!r}", param="id")
