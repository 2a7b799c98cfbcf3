"""The tokens of sessions in a file of the home, for homes without Redis: they survive a restart, and all processes of the home see them.

Nothing is synced: a crash of the machine may lose the file, and each of its sessions is then rendered anew once. A call takes well
under a millisecond, so it runs on the event loop.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

_WAIT_SECONDS = 0.05
_SWEEP_SECONDS = 60.0
_MAX_NAMES = 500
_TABLES = """
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, until REAL NOT NULL, value BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS kept_until ON kept (until);
"""
_OLDER_HALF = "DELETE FROM kept WHERE until <= (SELECT until FROM kept ORDER BY until LIMIT 1 OFFSET (SELECT count(*) / 2 FROM kept))"
_log = structlog.get_logger(__name__)


class DiskSessionStore:
    """A `SessionStore`. Opened by its first call. Belongs to one event loop. `max_bytes`: of the file; the oldest go first."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, max_bytes: int = 2**30) -> None:
        self._path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._swept_at = 0.0
        self._has_warned = False

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """See the port."""
        found: dict[str, bytes] = {}
        with suppress(sqlite3.Error, OSError):
            for start in range(0, len(names), _MAX_NAMES):
                part = names[start : start + _MAX_NAMES]
                query = f"SELECT name, value FROM kept WHERE until > ? AND name IN ({','.join('?' * len(part))})"  # noqa: S608 marks only
                found.update(self._opened().execute(query, (self._clock(), *part)))
        return [found.get(name) for name in names]

    async def write(self, values: Mapping[str, bytes], seconds: float) -> None:
        """See the port."""
        now = self._clock()
        rows = [(name, now + seconds, value) for name, value in values.items()]
        self._change("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", rows)
        if now >= self._swept_at + _SWEEP_SECONDS:
            self._swept_at = now
            self._sweep(now)

    async def shorten(self, names: Sequence[str], seconds: float) -> None:
        """See the port."""
        until = self._clock() + seconds
        self._change("UPDATE kept SET until = min(until, ?) WHERE name = ?", [(until, name) for name in names])

    def close(self) -> None:
        """See the port."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _change(self, statement: str, rows: Sequence[tuple[str | float | bytes, ...]]) -> None:
        try:
            with self._opened() as connection:
                connection.executemany(statement, rows)
        except (sqlite3.Error, OSError) as error:
            if not self._has_warned:
                self._has_warned = True
                said = "the tokens of sessions cannot be kept; their prompts are rendered anew"
                _log.warning(said, file=str(self._path), reason=str(error))

    def _sweep(self, now: float) -> None:
        self._change("DELETE FROM kept WHERE until <= ?", [(now,)])
        with suppress(sqlite3.Error, OSError):
            if self._num_bytes() > self._max_bytes:
                self._change(_OLDER_HALF, [()])

    def _num_bytes(self) -> int:
        pages, free, size = (
            int(self._opened().execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=_WAIT_SECONDS, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(_TABLES)
            self._connection = connection
        return self._connection
