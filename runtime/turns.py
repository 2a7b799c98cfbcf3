"""Whose turn it is to write into an SQLite file: what keeps the product running goes before its data.

SQLite's lock is asked for again and again, in no order: a worker that always has another batch can keep everybody else out. So whoever
writes leases, signs of life, engines, arms or sessions announces it beside the database; whoever writes data looks there first.

    announced()  holds a shared lock on <database>-turn until its transaction has begun
    give_way()   waits until nobody holds one, and goes on after `LONGEST_WAIT_SECONDS` all the same

The kernel frees locks of a process that ends, however it ends. PostgreSQL locks rows and needs no turns.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LONGEST_WAIT_SECONDS = 0.5
_PAUSE_SECONDS = 0.002


class WriteTurns:
    """See the module. `path`: of the database."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-turn"

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Let those that give way wait until the end of the block."""
        with self._opened() as file:
            if file is not None:
                with suppress(OSError):  # a disk without locks
                    fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def give_way(self) -> None:
        """Wait while somebody announces a transaction."""
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        with self._opened() as file:
            while file is not None and not _is_free(file) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """A handle of its own, so that threads of a process wait for each other too. None on a disk that cannot be written."""
        file = None
        with suppress(OSError):  # the transaction says what is wrong with the disk
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            if file is not None:
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough while a forked child has it open
                os.close(file)


def _is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a disk without locks
    return True
