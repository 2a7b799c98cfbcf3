"""Are the files of a home intact? Uses SQLite's own check of its pages, and the checksums of the log's records.

In: paths. Out: damaged files and records, by name. Waits for: the disk; the check at a start is bounded by file size.

Other values of millrace.db have no checksum (docs/repair.md, "Bits flip").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from contracts.errors import Damaged
from contracts.event_log import EventLog, LogRecord, is_damaged, pages_of
from runtime.log.loss_detection import PositionKey
from runtime.settings import Settings

WHOLE_BYTES = 2**30
"""Up to this size a start checks every page and every index: 0.7 GB/s from memory."""
QUICK_BYTES = 8 * 2**30
"""Up to this size a start checks every page; only `millrace doctor` checks larger files."""
NEWEST_RECORDS = 1000
"""A start checks this many of the newest records of each partition, and all unread ones."""


class DamagedFile(NamedTuple):
    """A file and the problem that SQLite found."""

    path: Path
    problem: str


def check_files(settings: Settings) -> None:
    """Check the database files of a home, within the bounds for a start. Raises Damaged: names every damaged file."""
    if found := list(damaged_files(settings.home)):
        files = "; ".join(f"{item.path} ({item.problem})" for item in found)
        raise Damaged(
            f"damaged: {files}. Nothing was started. Restore the file from a backup. You can also move a file of log/ away: then "
            f"`millrace log accept-loss --home {settings.home}` shows what is lost with it, and --yes accepts that. "
            "For millrace.db without a backup, `sqlite3 millrace.db .recover | sqlite3 new.db` saves the readable rows",
            files=[str(item.path) for item in found],
        )


def damaged_files(home: Path, *, everything: bool = False) -> Iterator[DamagedFile]:
    """The SQLite files of a home that fail their check. `everything`: of any size."""
    for path in [home / "millrace.db", *sorted((home / "log").glob("*.db"))]:
        if path.is_file() and (problem := _problem_of(path, everything=everything)) is not None:
            yield DamagedFile(path, problem)


def damaged_records(
    event_log: EventLog, positions: Mapping[PositionKey, int], newest: int = NEWEST_RECORDS
) -> Iterator[LogRecord]:
    """Corrupt records among the `newest` of each partition and those that a worker has not read."""
    unread: dict[tuple[str, int], int] = {}
    for (_, topic, partition), offset in positions.items():
        unread[topic, partition] = min(offset, unread.get((topic, partition), offset))
    for topic, state in event_log.describe().items():
        for partition, end in state.ends.items():
            offset = max(0, min(end - newest, unread.get((topic, partition), end)))
            for records in pages_of(event_log, topic, partition, offset, end):
                yield from (record for record in records if is_damaged(record.value))


def _problem_of(path: Path, *, everything: bool) -> str | None:
    size = path.stat().st_size
    if size > QUICK_BYTES and not everything:
        return None
    check = "integrity_check" if everything or size <= WHOLE_BYTES else "quick_check"
    try:
        connection = sqlite3.connect(path, timeout=10.0)
        try:
            connection.execute("PRAGMA query_only = ON")
            said = connection.execute(f"PRAGMA {check}(1)").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.OperationalError:
        return None  # it cannot be opened, or is being written: the process that uses it reports that
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if said == "ok" else " ".join(str(said).split())
