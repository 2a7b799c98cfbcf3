from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.errors import RecordTooLarge, Unavailable
from contracts.event_log import MAX_RECORD_BYTES, Message
from runtime.log.local import LocalLog
from runtime.log.spool import Spool
from runtime.log.spool_slot import SpoolSlot
from tests.unit.services.serving import wait_until

TOPIC = "generations"


class Away(LocalLog):
    """A log that can refuse, fall silent, or take no large record.

    Attributes:
        refuses: appends raise Unavailable.
        answers: cleared, appends wait.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.refuses = False
        self.answers = threading.Event()
        self.answers.set()
        self.limit = 10**9
        self.batches: list[int] = []

    def append(self, messages: Sequence[Message]) -> None:
        self.answers.wait(60)
        if self.refuses:
            raise Unavailable("no broker")
        if any(len(message.value) > self.limit for message in messages):
            raise RecordTooLarge("too large for this broker")
        super().append(messages)
        self.batches.append(len(messages))

    def keys(self) -> list[str]:
        return [record.key for record in self.read(TOPIC, 0, 0, 10_000)]


def messages(*keys: str, size: int = 10) -> list[Message]:
    return [Message(TOPIC, 0, key, b"x" * size) for key in keys]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Away]:
    log = Away(tmp_path / "log")
    yield log
    log.answers.set()
    log.close()


@contextmanager
def spooling(log: Away, folder: Path, max_bytes: int = 2**20) -> Iterator[Spool]:
    spool = Spool(log, folder / "spool", max_bytes=max_bytes, patience_seconds=0.1)
    yield spool
    log.answers.set()
    spool.close()


def test_a_log_that_answers_gets_everything_itself(log: Away, tmp_path: Path) -> None:
    with spooling(log, tmp_path) as spool:
        spool.append(messages("a", "b"))
        assert log.keys() == ["a", "b"]
        assert (spool.away, spool.num_spooled, spool.num_waiting, spool.oldest_age_seconds) == (False, 0, 0, 0.0)


def test_while_something_waits_nothing_overtakes_it_and_the_log_is_probed_with_one(log: Away, tmp_path: Path) -> None:
    with spooling(log, tmp_path) as spool:
        log.refuses = True
        spool.append(messages("a", "b", "c"))
        log.refuses = False
        spool.append(messages("d"))
        wait_until(lambda: not spool.away)
        assert log.keys() == ["a", "b", "c", "d"]
        assert log.batches[0] == 1


def test_a_slot_knows_since_when_its_oldest_waits(tmp_path: Path) -> None:
    slot = SpoolSlot.take_first(tmp_path, 2**20)
    slot.append(messages("a"))
    since = slot.oldest_at
    slot.append(messages("b"))
    assert slot.oldest_at == since is not None
    slot.remove(slot.oldest(1, 2**20))
    assert slot.oldest_at is not None
    assert slot.oldest_at >= since
    slot.remove(slot.oldest(1, 2**20))
    assert (slot.num_records, slot.num_bytes) == (0, 0)
    slot.close()


class Buggy(Away):
    """A log whose client breaks in a way that nobody expected, once."""

    is_broken = True

    def append(self, messages: Sequence[Message]) -> None:
        if self.is_broken and not self.refuses:
            self.is_broken = False
            raise ZeroDivisionError("a mistake in the client")
        super().append(messages)


def test_an_unexpected_error_does_not_end_the_forwarding(tmp_path: Path) -> None:
    log = Buggy(tmp_path / "log")
    log.refuses = True
    with spooling(log, tmp_path) as spool:
        spool.append(messages("a"))
        log.refuses = False
        wait_until(lambda: not spool.away)
        assert log.keys() == ["a"]
    assert not log.is_broken
    log.close()


def refuse(log: Away) -> None:
    log.refuses = True


def fall_silent(log: Away) -> None:
    log.answers.clear()


@pytest.mark.parametrize("go_away", [refuse, fall_silent])
def test_what_came_while_the_log_was_away_follows_in_order(
    log: Away, tmp_path: Path, go_away: Callable[[Away], None]
) -> None:
    with spooling(log, tmp_path) as spool:
        go_away(log)
        for number in range(30):
            spool.append(messages(f"{number:02}"))
        assert spool.away
        assert spool.num_waiting == spool.num_spooled == 30
        assert spool.waiting_bytes == 30 * 12
        assert spool.oldest_age_seconds > 0
        log.refuses = False
        log.answers.set()
        wait_until(lambda: not spool.away)
        spool.append(messages("last"))
        assert (spool.num_waiting, spool.waiting_bytes, spool.num_forwarded) == (0, 0, 30)

    first = list(dict.fromkeys(log.keys()))  # the silent one took what it was first sent after all
    assert first == [*(f"{number:02}" for number in range(30)), "last"]
    assert max(log.batches) > 10


def test_what_waits_is_brought_over_at_the_next_start(log: Away, tmp_path: Path) -> None:
    log.refuses = True
    with spooling(log, tmp_path) as spool:
        spool.append(messages("a", "b"))
    log.refuses = False
    with spooling(log, tmp_path) as spool:
        wait_until(lambda: not spool.away)
    assert log.keys() == ["a", "b"]


def test_replicas_have_slots_of_their_own(log: Away, tmp_path: Path) -> None:
    log.refuses = True
    with spooling(log, tmp_path) as first, spooling(log, tmp_path) as second:
        first.append(messages("a"))
        second.append(messages("b"))
        assert (first.num_waiting, second.num_waiting) == (1, 1)
    assert sorted(path.name for path in (tmp_path / "spool").glob("*.db")) == ["0.db", "1.db"]


def spool_and_die(folder: Path, spooled: threading.Event) -> None:
    """In a process of its own, which holds slot 0."""
    log = Away(folder / "log")
    log.refuses = True
    Spool(log, folder / "spool").append(messages("of the dead"))
    spooled.set()
    signal.pause()


@pytest.mark.slow
def test_a_slot_belongs_to_its_owner_until_that_is_killed(log: Away, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    spooled = spawn.Event()
    dying = spawn.Process(target=spool_and_die, args=(tmp_path, spooled))
    dying.start()
    assert spooled.wait(60)
    assert SpoolSlot.take(tmp_path / "spool", 0, 2**20) is None  # its owner lives
    assert dying.pid is not None
    os.kill(dying.pid, signal.SIGKILL)
    dying.join()
    with spooling(log, tmp_path):
        wait_until(log.keys)
    assert log.keys() == ["of the dead"]


def test_the_living_bring_over_what_the_dead_left(log: Away, tmp_path: Path) -> None:
    kept = [SpoolSlot.take_first(tmp_path / "spool", 2**20) for _ in range(2)]
    kept[1].append(messages("of the dead"))
    kept[1].close()
    kept[0].close()
    with spooling(log, tmp_path) as spool:
        assert spool.num_waiting == 0
        wait_until(log.keys)
    assert log.keys() == ["of the dead"]


def keeps(spool: Spool, batch: list[Message]) -> bool:
    try:
        spool.append(batch)
    except Unavailable:
        return False
    return True


def test_a_full_spool_refuses_and_takes_again_once_it_was_emptied(log: Away, tmp_path: Path) -> None:
    with spooling(log, tmp_path, max_bytes=200_000) as spool:
        log.refuses = True
        num_kept = 0
        while num_kept < 10 and keeps(spool, messages(str(num_kept), size=50_000)):
            num_kept += 1
        assert spool.num_waiting == num_kept
        with pytest.raises(Unavailable, match="free disk space"):
            spool.append(messages("large", size=50_000))
        assert 1 <= num_kept <= 4
        assert (tmp_path / "spool" / "0.db").stat().st_size <= 200_000
        log.refuses = False
        wait_until(lambda: not spool.away)
        spool.append(messages("after"))
    assert log.keys() == [*map(str, range(num_kept)), "after"]


def test_a_spool_that_cannot_be_opened_lets_the_log_work_alone(log: Away, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file where the folder should be")
    with spooling(log, tmp_path) as spool:
        spool.append(messages("a"))
        log.refuses = True
        with pytest.raises(Unavailable, match="cannot be opened"):
            spool.append(messages("b"))
    assert log.keys() == ["a"]


def test_a_damaged_slot_is_passed_over(log: Away, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "0.db").write_bytes(b"no database" * 1000)
    with spooling(log, tmp_path) as spool:
        log.refuses = True
        spool.append(messages("a"))
        assert spool.num_waiting == 1
    assert (tmp_path / "spool" / "0.db").read_bytes() == b"no database" * 1000


def test_a_record_that_the_log_will_never_take_is_refused_at_once(log: Away, tmp_path: Path) -> None:
    with spooling(log, tmp_path) as spool:
        log.refuses = True
        with pytest.raises(RecordTooLarge, match="1000001 bytes"):
            spool.append([*messages("small"), *messages("k", size=MAX_RECORD_BYTES)])
        assert spool.num_waiting == 0


def test_a_refused_record_does_not_keep_back_those_behind_it(log: Away, tmp_path: Path) -> None:
    with spooling(log, tmp_path) as spool:
        log.refuses = True
        spool.append([*messages("a", "b"), *messages("large", size=5000), *messages("c")])
        log.limit = 1000
        log.refuses = False
        wait_until(lambda: not spool.away)
        assert (spool.num_refused, spool.num_waiting) == (1, 0)
    assert log.keys() == ["a", "b", "c"]
