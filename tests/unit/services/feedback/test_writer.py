"""Group commit: one transaction for all waiting requests, and a result for each item."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection, event, func, select

from contracts.errors import Unavailable
from contracts.event_log import Message
from contracts.ids import new_completion_id
from contracts.records import Signal, decode
from contracts.tables import received_signal, signal_count
from contracts.tasks.loading import load_tasks
from contracts.topics import SIGNALS
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.outbox import Relay, put, waiting
from services.feedback import writer as writing
from services.feedback.repository import PROCESS, Retraction
from services.feedback.requests import ReceivedItem, read_item
from services.feedback.writer import RelayThread, Submission, Writer
from tests.unit.services.serving import make_home, wait_until

COMPLETION = new_completion_id()


class Gated(Database):
    """A database whose transactions wait until the gate is open, so that requests gather behind the first."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.is_entered, self.gate = threading.Event(), threading.Event()
        self.fail_with: Exception | None = None
        self.num_transactions = 0

    @contextmanager
    def transaction(self, *, gives_way: bool = False) -> Iterator[Connection]:
        self.is_entered.set()
        self.gate.wait(60.0)
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        with super().transaction(gives_way=gives_way) as connection:
            self.num_transactions += 1
            yield connection


@pytest.fixture
def gated(database: Database) -> Iterator[Gated]:
    opened = Gated(database.url)
    yield opened
    opened.close()


class Items:
    """Items of the tasks of a home."""

    def __init__(self, folder: Path) -> None:
        self.tasks = load_tasks(make_home(folder).tasks)

    def one(self, signal_id: str, value: bool = True, at: float = 100.0) -> ReceivedItem:
        item = {"id": signal_id, "completion_id": COMPLETION, "name": "accepted", "value": value}
        return read_item(item | {"submitter": {"id": "u1"}}, self.tasks, "default", at)

    def submission(self, *signal_ids: str, num_rejected: int = 0, **changes: Any) -> Submission:
        return Submission([self.one(name, **changes) for name in signal_ids], 100, {"invalid_request": num_rejected})


@pytest.fixture
def items(tmp_path: Path) -> Items:
    return Items(tmp_path)


async def gathered(gated: Gated, writer: Writer, *waiting: Awaitable[Any]) -> Sequence[Any]:
    """Begin all of them while the first is being written."""
    tasks = [asyncio.ensure_future(waiting[0])]
    await asyncio.to_thread(gated.is_entered.wait, 10.0)
    tasks += [asyncio.ensure_future(one) for one in waiting[1:]]
    await asyncio.sleep(0)
    gated.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await writer.close()
    return results


def fates(results: Sequence[Any]) -> list[list[tuple[str, float]]]:
    return [[tuple(entry) for entry in entries] for entries in results]


def messages(database: Database) -> list[Signal]:
    with database.snapshot() as connection:
        return [decode(Signal, item.value) for item in waiting(connection, SIGNALS)]


def counts(database: Database) -> dict[str, int]:
    with database.snapshot() as connection:
        return {row[0]: row[1] for row in connection.execute(select(signal_count.c.state, signal_count.c.count))}


def num_received(database: Database) -> int:
    with database.snapshot() as connection:
        return connection.execute(select(func.count()).select_from(received_signal)).scalar_one()


def test_requests_that_wait_share_a_transaction(gated: Gated, items: Items) -> None:
    commits: list[int] = []
    writer = Writer(gated, lambda: commits.append(1))
    requests = [writer.submit(items.submission(f"fb-{number}")) for number in range(50)]
    results = asyncio.run(gathered(gated, writer, *requests))

    assert fates(results) == [[("accepted", 100.0)]] * 50
    assert len(commits) == gated.num_transactions == 2  # the first alone; all that came meanwhile
    assert [signal.id for signal in messages(gated)] == [f"fb-{number}" for number in range(50)]


def test_one_id_in_a_group_fares_as_in_sequence(gated: Gated, items: Items) -> None:
    writer = Writer(gated, lambda: None)
    results = asyncio.run(
        gathered(
            gated,
            writer,
            writer.submit(items.submission("old")),
            writer.submit(items.submission("a", "b", at=101.0)),
            writer.submit(items.submission("a", at=102.0, num_rejected=2)),
            writer.submit(items.submission("a", value=False, at=103.0)),
            writer.submit(items.submission("old", "old", at=104.0)),
            writer.submit(items.submission("old", value=False, at=105.0)),
        )
    )

    assert fates(results) == [
        [("accepted", 100.0)],
        [("accepted", 101.0), ("accepted", 101.0)],
        [("duplicate", 101.0)],
        [("conflict", 101.0)],
        [("duplicate", 100.0), ("duplicate", 100.0)],
        [("conflict", 100.0)],
    ]
    assert gated.num_transactions == 2
    assert counts(gated) == {"duplicate": 3, "conflict": 2, "rejected": 2}
    assert [signal.id for signal in messages(gated)] == ["old", "a", "b"]


def test_a_failed_commit_fails_its_requests_and_no_other(gated: Gated, items: Items) -> None:
    writer = Writer(gated, lambda: None)
    gated.fail_with = Unavailable("disk full")
    requests = [writer.submit(items.submission(name)) for name in ("a", "b", "c")]
    first, *others = asyncio.run(gathered(gated, writer, *requests))

    assert isinstance(first, Unavailable)
    assert fates(others) == [[("accepted", 100.0)]] * 2
    assert [signal.id for signal in messages(gated)] == ["b", "c"]


def test_what_the_database_cannot_take_does_not_fail_its_neighbours(gated: Gated, items: Items) -> None:
    def refuse(_connection: object, _cursor: object, _statement: str, parameters: object, *_: object) -> None:
        if "poison" in repr(parameters):
            raise ValueError("not in this encoding")

    event.listen(gated._engine, "before_cursor_execute", refuse)
    writer = Writer(gated, lambda: None)
    requests = [writer.submit(items.submission(name)) for name in ("first", "a", "poison", "b")]
    first, a, poison, b = asyncio.run(gathered(gated, writer, *requests))

    assert fates([first, a, b]) == [[("accepted", 100.0)]] * 3
    assert isinstance(poison, ValueError)
    assert [signal.id for signal in messages(gated)] == ["first", "a", "b"]


def test_a_retraction_keeps_its_place(gated: Gated, items: Items) -> None:
    writer = Writer(gated, lambda: None)
    results = asyncio.run(
        gathered(
            gated,
            writer,
            writer.retract(Retraction("default", "a", 1.0)),  # too early
            writer.submit(items.submission("a", "b")),
            writer.retract(Retraction("default", "a", 2.0)),
            writer.retract(Retraction("default", "a", 3.0)),
            writer.retract(Retraction("other", "b", 4.0)),
            writer.submit(items.submission("a", at=105.0)),
        )
    )

    early, submitted, taken_back, again, foreign, later = results
    assert (early, taken_back, again, foreign) == (None, 2.0, 2.0, None)
    assert fates([submitted, later]) == [[("accepted", 100.0), ("accepted", 100.0)], [("duplicate", 100.0)]]
    assert [(signal.id, signal.retracted) for signal in messages(gated)] == [("a", False), ("b", False), ("a", True)]


def test_more_than_may_wait_is_refused_and_room_comes_back(gated: Gated, items: Items) -> None:
    large = Submission([items.one("large")], writing.MAX_WAITING_BYTES)

    async def scenario(writer: Writer) -> None:
        waiting = asyncio.ensure_future(writer.submit(large))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="does not keep up"):
            await writer.submit(items.submission("small"))
        gated.gate.set()
        await waiting
        assert fates([await writer.submit(items.submission("small"))]) == [[("accepted", 100.0)]]
        await writer.close()

    asyncio.run(scenario(Writer(gated, lambda: None)))
    assert num_received(gated) == 2


def test_a_request_that_is_given_up_is_stored_all_the_same(gated: Gated, items: Items) -> None:
    async def scenario(writer: Writer) -> None:
        given_up = asyncio.ensure_future(writer.submit(items.submission("a")))
        stays = asyncio.ensure_future(writer.submit(items.submission("b")))
        await asyncio.sleep(0)
        given_up.cancel()
        gated.gate.set()
        await stays
        await writer.close()

    asyncio.run(scenario(Writer(gated, lambda: None)))
    assert num_received(gated) == 2


def num_retracted() -> float:
    return REGISTRY.get_sample_value("millrace_signals_total", {"fate": "retracted"}) or 0.0


def test_only_what_was_taken_back_for_the_first_time_is_counted(gated: Gated, items: Items) -> None:
    writer, before = Writer(gated, lambda: None), num_retracted()
    wishes = [Retraction("default", name, at) for name, at in (("a", 200.0), ("a", 201.0), ("never", 202.0))]
    asyncio.run(
        gathered(gated, writer, writer.submit(items.submission("a")), *(writer.retract(wish) for wish in wishes))
    )
    assert num_retracted() - before == 1


def test_a_group_is_bounded_in_items(gated: Gated, items: Items) -> None:
    writer, num_items = Writer(gated, lambda: None), writing.MAX_GROUP_ITEMS // 2 + 1
    large = [writer.submit(Submission((), 0, {"invalid_request": num_items})) for _ in range(2)]
    asyncio.run(gathered(gated, writer, writer.submit(items.submission("a")), *large))
    assert gated.num_transactions == 3


def test_room_comes_back_once_work_is_done(gated: Gated, items: Items) -> None:
    gated.gate.set()
    writer = Writer(gated, lambda: None)

    async def work() -> list[list[Any]]:
        await writer.submit(Submission((), writing.MAX_WAITING_BYTES, {"invalid_request": writing.MAX_WAITING_ITEMS}))
        return [await writer.submit(items.submission("a"))]

    assert fates(asyncio.run(work())) == [[("accepted", 100.0)]]


class Buggy(LocalLog):
    """A log whose client breaks in a way that nobody expected, once."""

    is_broken = True

    def append(self, messages: Sequence[Message]) -> None:
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError("a mistake in the client")
        super().append(messages)


def test_an_unexpected_error_does_not_end_the_relaying(database: Database, tmp_path: Path) -> None:
    with database.transaction() as connection:
        put(connection, PROCESS, [Message("signals", 0, "k", b"a")])
    log = Buggy(tmp_path / "log")
    thread = RelayThread(database, Relay(PROCESS, database, log), retry_seconds=0.01)
    thread.start()
    wait_until(lambda: bool(log.read("signals", 0, 0, 1)))
    thread.stop()
    assert not log.is_broken
    log.close()
