"""Reads the log's side of the ledger, a long log in several processes: its partitions are independent of each other.

In: the log, and for other processes how to open it. Out: a `LogSide`, the same one whoever read which partition. Waits for: reads, and
for the other processes. One that ends early ends the audit, which names it; if the audit ends, the others end with it.

    this process ──▶ its partitions ──────────────────╮
         │  ◀── number of records, again and again    ├──▶ logged.side_of
         ╰─▶ reader 1, 2, ... ──▶ their partitions ───╯
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from commands.ledger.logged import LogSide, Say, Stretch, read_stretch, side_of, stretches_of
from contracts.errors import MillraceError, Unavailable
from contracts.event_log import EventLog
from runtime.settings import load_settings
from weights.cores import num_cores

Reopen = Callable[[], EventLog]
"""Opens the log again, in another process: it is pickled."""

FEW_RECORDS = 200_000
"""So many are read in less time than two processes need to start."""
MOST_READERS = 4
_SAY_EVERY = 20_000
_OBJECTS = 50_000


def log_of(home: Path) -> EventLog:
    """The log of a home: with `functools.partial`, a `Reopen`."""
    return load_settings(home).event_log()


@contextmanager
def rare_collections() -> Iterator[None]:
    """An audit makes millions of small objects and no cycles: Python would look for cycles a third of its time."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def read_log(
    log: EventLog,
    marks: Mapping[int, int],
    say: Say,
    reopen: Reopen | None = None,
    *,
    few: int = FEW_RECORDS,
    num_readers: int | None = None,
) -> LogSide:
    """Read every record after the marks, up to the end that the log has now.

    Args:
        log: to read in this process.
        marks: partition to the first offset.
        say: told how far it is.
        reopen: how others open it; None: this process reads all of it.
        few: so many records are read in one process.
        num_readers: processes, with this one; by default as many as there are cores, up to four.

    Raises Unavailable, Damaged: the log cannot be read, or a reader ended.
    """
    stretches = stretches_of(log, marks)
    progress = _Progress(sum(stretch.num_records for stretch in stretches), say)
    num = min(num_readers or min(num_cores(), MOST_READERS), sum(stretch.num_records > 0 for stretch in stretches))
    if reopen is None or num < 2 or progress.num_left <= few:  # noqa: PLR2004 one reader is this process
        return side_of(stretches, {item.partition: read_stretch(log, item, progress.add) for item in stretches})
    return side_of(stretches, _read_apart(log, reopen, _shared_out(stretches, num), progress))


def _read_apart(log: EventLog, reopen: Reopen, shares: list[list[Stretch]], progress: _Progress) -> dict[int, LogSide]:
    mine, *others = shares
    readers: dict[Connection, _Reader] = {}
    parts: dict[int, LogSide] = {}

    def hear(timeout: float | None) -> None:
        for source in wait([source for source, reader in readers.items() if not reader.is_done], timeout):
            said = readers[source].hear()  # type: ignore[index] # only connections were given
            if isinstance(said, int):
                progress.add(said)
            else:
                parts.update(said)

    def seen(num: int) -> None:
        progress.add(num)
        hear(0.0)

    try:
        for share in others:
            reader = _Reader(reopen, share)
            readers[reader.source] = reader
        for item in mine:
            parts[item.partition] = read_stretch(log, item, seen)
        while not all(reader.is_done for reader in readers.values()):
            hear(None)
    finally:
        for reader in readers.values():
            reader.end()
    return parts


class _Progress:
    def __init__(self, num_left: int, say: Say) -> None:
        self.num_left, self._say, self._num_read = num_left, say, 0

    def add(self, num: int) -> None:
        before, self._num_read = self._num_read, self._num_read + num
        if before // _SAY_EVERY != self._num_read // _SAY_EVERY:
            self._say(f"log: {self._num_read:,} of about {self.num_left:,} records")


class _Reader:
    def __init__(self, reopen: Reopen, share: list[Stretch]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._share = share
        self.is_done = False
        self.source, sink = spawn.Pipe(duplex=False)
        self._process: SpawnProcess = spawn.Process(target=_read_there, args=(reopen, share, sink), daemon=True)
        self._process.start()
        sink.close()  # the process has the only copy: once it has ended, nothing more can come

    def hear(self) -> int | dict[int, LogSide]:
        """The next thing that it says: how many records it read meanwhile, or at last all of them.

        Raises Unavailable: it ended, or says why it cannot read the log.
        """
        try:
            said = self.source.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            partitions = ", ".join(map(str, sorted(item.partition for item in self._share)))
            who = f"the process that read the log's partitions {partitions} for the audit"
            raise Unavailable(f"{who} ended early, with status {self._process.exitcode}: run it again") from error
        if isinstance(said, MillraceError):
            raise said
        self.is_done = not isinstance(said, int)
        found: int | dict[int, LogSide] = said
        return found

    def end(self) -> None:
        """End it, whether it is done or not."""
        self.source.close()
        self._process.kill()
        self._process.join()


def _shared_out(stretches: Sequence[Stretch], num: int) -> list[list[Stretch]]:
    """About equally many records for each; the longest stretches are given away first."""
    shares: list[list[Stretch]] = [[] for _ in range(num)]
    for stretch in sorted(stretches, key=lambda item: (-item.num_records, item.partition)):
        least = min(shares, key=lambda share: sum(item.num_records for item in share))
        (least if stretch.num_records else shares[0]).append(stretch)
    return shares


def _read_there(reopen: Reopen, share: list[Stretch], sink: Connection) -> None:
    """What a reader runs. If the audit is gone, nobody hears it, and it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells both, and the audit ends this one
    with rare_collections():
        try:
            log = reopen()
            found = {item.partition: read_stretch(log, item, sink.send) for item in share}
            log.close()
            sink.send(found)
        except MillraceError as error:
            sink.send(error)
        except BrokenPipeError:
            return
