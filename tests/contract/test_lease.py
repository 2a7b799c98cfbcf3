"""One trainer: who may write, on both databases."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest
from sqlalchemy import delete, insert, select

from contracts.errors import LeaseHeld, LeaseLost, StaleWrite, Unavailable
from contracts.tables import training_lease, verdict
from runtime.database import Database
from runtime.lease import Lease, read_epochs, unheld_seconds
from runtime.lease_holder import LeaseHolder, this_process
from tests.worlds.servers.leases import a_dead_process, a_lease, a_process_that_ended, let_it_expire

SOON_SECONDS = 15.0  # a lease that is waited for takes 20


def elsewhere() -> LeaseHolder:
    return msgspec.structs.replace(this_process(), host="another", boot="another", pid=7)


def epochs(database: Database) -> list[int]:
    with database.snapshot() as connection:
        return sorted(read_epochs(connection, "p"))


def renewed_at(database: Database) -> float:
    with database.snapshot() as connection:
        return float(connection.execute(select(training_lease.c.renewed_at)).scalar_one())


def test_the_first_takes_the_first_epoch_and_each_policy_has_its_own(any_database: Database) -> None:
    first, other = Lease.acquire(any_database, "p"), Lease.acquire(any_database, "q")
    assert (first.epoch, other.epoch) == (1, 1)
    with any_database.transaction() as connection:
        first.check(connection)
        other.check(connection)
    assert epochs(any_database) == [1]


def test_a_second_is_refused_at_once_and_told_who_holds_it(any_database: Database) -> None:
    Lease.acquire(any_database, "p", holder=elsewhere())
    began = time.monotonic()
    with pytest.raises(
        LeaseHeld, match=r"process 7 on another, since 20.*stop that process first, or wait 20 s"
    ) as refused:
        Lease.acquire(any_database, "p")
    assert time.monotonic() - began < SOON_SECONDS
    assert refused.value.facts["pid"] == 7
    assert refused.value.facts["since"] == pytest.approx(time.time(), abs=60)
    assert epochs(any_database) == [1]


def test_two_in_one_process_are_two(any_database: Database) -> None:
    Lease.acquire(any_database, "p")
    with pytest.raises(LeaseHeld):
        Lease.acquire(any_database, "p")


@pytest.mark.parametrize("holder", [a_dead_process, a_process_that_ended])
def test_a_dead_holder_on_this_machine_is_noticed_at_once(any_database: Database, holder: object) -> None:
    assert callable(holder)
    Lease.acquire(any_database, "p", holder=holder())
    assert Lease.acquire(any_database, "p").epoch == 2


@pytest.mark.parametrize("difference", [{"host": "another"}, {"machine": "another"}, {"namespace": "pid:[1]"}])
def test_one_that_cannot_be_looked_at_from_here_counts_as_alive(
    any_database: Database, difference: dict[str, str]
) -> None:
    holder = msgspec.structs.replace(a_process_that_ended(), **difference)
    Lease.acquire(any_database, "p", holder=holder)
    with pytest.raises(LeaseHeld):
        Lease.acquire(any_database, "p")


def test_after_its_lifetime_a_successor_takes_it_and_the_first_finds_out(any_database: Database) -> None:
    first = Lease.acquire(any_database, "p", holder=elsewhere())
    let_it_expire(any_database, "p")
    second = Lease.acquire(any_database, "p")
    assert second.epoch == 2
    for write in (first.check_now, first.renew, first.next_epoch, lambda: first.note_start("x")):
        with pytest.raises(LeaseLost, match="epoch 1 of p is over: epoch 2 is held by process"):
            write()
    with pytest.raises(StaleWrite):
        first.assert_held()
    first.release()
    second.check_now()


def test_a_released_lease_is_taken_at_once_and_its_holder_writes_no_more(any_database: Database) -> None:
    first = Lease.acquire(any_database, "p", holder=elsewhere())
    first.release()
    with pytest.raises(LeaseLost), any_database.transaction() as connection:
        first.check(connection)
    assert Lease.acquire(any_database, "p").epoch == 2


def test_epochs_rise_above_everything_that_was_seen(any_database: Database) -> None:
    assert a_lease(any_database, "p", floor=40).epoch == 41
    assert a_lease(any_database, "p", floor=7).epoch == 42
    with any_database.transaction() as connection:
        connection.execute(delete(training_lease))
    last = a_lease(any_database, "p")
    assert last.epoch == 43
    assert last.next_epoch() == 44
    assert last.next_epoch(floor=60) == 61
    last.check_now()
    assert epochs(any_database) == [41, 42, 43, 44, 61]


def test_what_an_epoch_goes_on_from_is_kept_beside_it(any_database: Database) -> None:
    lease = a_lease(any_database, "p")
    lease.note_start("checkpoint-3")
    lease.next_epoch()
    with any_database.snapshot() as connection:
        assert [item.start for item in read_epochs(connection, "p").values()] == ["checkpoint-3", None]


def test_a_refused_write_takes_its_whole_transaction_with_it(any_database: Database) -> None:
    first = a_lease(any_database, "p")
    second = a_lease(any_database, "p")
    row = {"policy": "p", "version": 1, "accepted": True, "reason": "", "details": {}, "at": 0.0}

    def write() -> None:
        with any_database.transaction() as connection:
            connection.execute(insert(verdict).values(**row))
            first.check(connection)

    with pytest.raises(LeaseLost):
        write()
    with any_database.snapshot() as connection:
        assert connection.execute(select(verdict)).all() == []
    second.check_now()


def test_no_successor_comes_between_a_check_and_the_end_of_its_transaction(any_database: Database) -> None:
    first, order = a_lease(any_database, "p"), []

    def succeed() -> None:
        a_lease(any_database, "p")
        order.append("successor")

    with ThreadPoolExecutor(1) as pool:
        with any_database.transaction() as connection:
            first.check(connection)
            waiting = pool.submit(succeed)
            time.sleep(0.3)  # long enough to overtake, if nothing kept it back
            order.append("write")
        waiting.result()
    assert order == ["write", "successor"]


@pytest.mark.services
def test_a_holder_that_is_stopped_between_check_and_write_keeps_no_successor_out(any_database: Database) -> None:
    if any_database.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer, on one machine: whoever freezes there is seen to")
    hasty = Database(any_database.url, longest_pause_seconds=0.5)
    first = Lease.acquire(hasty, "p", holder=a_dead_process())
    row = {"policy": "p", "version": 1, "accepted": True, "reason": "", "details": {}, "at": 0.0}

    def write(pool: ThreadPoolExecutor) -> Future[Lease]:
        with first.transaction() as connection:
            successor = pool.submit(a_lease, any_database, "p")
            successor.result()  # takes longer than the pause that the server allows
            connection.execute(insert(verdict).values(**row))
        return successor

    with ThreadPoolExecutor(1) as pool, pytest.raises(Unavailable):
        write(pool)
    assert epochs(any_database) == [1, 2]
    with any_database.snapshot() as connection:
        assert connection.execute(select(verdict)).all() == []
    with pytest.raises(LeaseLost):
        first.check_now()
    hasty.close()


@pytest.mark.services
def test_renewals_do_not_wait_for_a_long_transaction(any_database: Database) -> None:
    if any_database.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    first = a_lease(any_database, "p")
    before = renewed_at(any_database)
    with any_database.transaction() as connection:
        first.check(connection)
        first.renew()
        assert renewed_at(any_database) > before


def test_of_many_at_once_one_wins(any_database: Database) -> None:
    def attempt(_: int) -> int | None:
        try:
            return Lease.acquire(any_database, "p").epoch
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [epoch for epoch in pool.map(attempt, range(8)) if epoch is not None]
    assert won == [1]


def test_it_is_kept_alive_while_its_holder_works_and_released_at_the_end(any_database: Database) -> None:
    lease = Lease.acquire(any_database, "p", lifetime=0.6)
    before, deadline = renewed_at(any_database), threading.Event()
    with lease.kept_alive():
        for _ in range(200):
            if renewed_at(any_database) > before:
                break
            deadline.wait(0.05)
        assert renewed_at(any_database) > before
        lease.check_now()
    assert Lease.acquire(any_database, "p").epoch == 2


def test_a_holder_without_progress_loses_it_and_cannot_write(any_database: Database) -> None:
    lease = Lease.acquire(any_database, "p", lifetime=0.3, holder=elsewhere())
    asked = threading.Event()

    def is_moving() -> bool:
        asked.set()
        return False

    with lease.kept_alive(is_moving):
        assert asked.wait(SOON_SECONDS)
        let_it_expire(any_database, "p")
        assert Lease.acquire(any_database, "p").epoch == 2
        with pytest.raises(LeaseLost):
            lease.check_now()


def test_the_heartbeat_finds_that_it_was_robbed(any_database: Database) -> None:
    lease = Lease.acquire(any_database, "p", lifetime=0.3, holder=a_dead_process())
    robber = a_lease(any_database, "p")
    with lease.kept_alive():
        for _ in range(200):
            try:
                lease.assert_held()
            except LeaseLost:
                break
            threading.Event().wait(0.05)
        with pytest.raises(LeaseLost):
            lease.assert_held()
    robber.check_now()


def test_how_long_nobody_has_held_it(any_database: Database) -> None:
    def unheld() -> float | None:
        with any_database.snapshot() as connection:
            return unheld_seconds(connection, "p")

    assert unheld() is None
    lease = Lease.acquire(any_database, "p")
    assert unheld() == 0.0
    lease.release()
    assert 0.0 <= (unheld() or 0.0) < SOON_SECONDS
    again = Lease.acquire(any_database, "p", lifetime=20.0)
    let_it_expire(any_database, "p")
    assert (unheld() or 0.0) >= 20.0
    again.renew()
    assert unheld() == 0.0
