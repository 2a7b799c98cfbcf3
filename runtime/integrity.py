"""Are the files of a home what was written? SQLite's own check of its pages, and the checksums of the log's records.

In: paths. Out: what is damaged, by name. Waits for: the disk; what a start may take is bounded by size.

SQLite notices broken pages, not bits that change inside of a value. Records of the log carry a checksum; bodies of answers
one of their own, wherever they are stored. Other values of millrace.db have none (docs/operating.md, "When bits flip").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from contracts.errors import Damaged
from contracts.event_log import EventLog, LogRecord, is_damaged
from runtime.log.loss_detection import PositionKey
from runtime.settings import Settings

WHOLE_BYTES = 2**30
"""Up to here every page and every index is checked at a start: .7 GB/s from memory, see docs/operating.md."""
QUICK_BYTES = 8 * 2**30
"""Up to here every page; beyond only `millrace doctor` looks at the whole file."""
NEWEST_RECORDS = 1000
"""So many of each partition are checked at a start, and what nobody has read yet."""
_PAGE = 500


class DamagedFile(NamedTuple):
    """A file and what SQLite says of it."""

    path: Path
    says: str


def check_files(settings: Settings) -> None:
    """Look at the databases of a home as long as a start may.

    Raises:
        Damaged: names every file that is damaged, and what to do.
    """
    if found := list(damaged_files(settings.home)):
        files = "; ".join(f"{item.path} ({item.says})" for item in found)
        raise Damaged(
            f"damaged: {files}. Nothing was started. Restore the file from a copy. A file of log/ can also be moved away: then "
            f"`millrace log accept-loss --home {settings.home}` says what is lost with it, and with --yes goes on without. "
            "millrace.db without a copy: `sqlite3 millrace.db .recover | sqlite3 new.db` saves what can be read",
            files=[str(item.path) for item in found],
        )


def damaged_files(home: Path, *, everything: bool = False) -> Iterator[DamagedFile]:
    """The SQLite files of a home that fail their check. `everything`: however large they are."""
    for path in [home / "millrace.db", *sorted((home / "log").glob("*.db"))]:
        if path.is_file() and (says := _what_is_wrong(path, everything=everything)) is not None:
            yield DamagedFile(path, says)


def damaged_records(
    event_log: EventLog, positions: Mapping[PositionKey, int], newest: int = NEWEST_RECORDS
) -> Iterator[LogRecord]:
    """Records that are not what was appended, among the `newest` of each partition and those that a worker has not read."""
    unread: dict[tuple[str, int], int] = {}
    for (_, topic, partition), offset in positions.items():
        unread[topic, partition] = min(offset, unread.get((topic, partition), offset))
    for topic, state in event_log.describe().items():
        for partition, end in state.ends.items():
            offset = max(0, min(end - newest, unread.get((topic, partition), end)))
            while offset < end and (records := event_log.read(topic, partition, offset, _PAGE)):
                yield from (record for record in records if is_damaged(record.value))
                offset = records[-1].offset + 1


def _what_is_wrong(path: Path, *, everything: bool) -> str | None:
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
        return None  # it cannot be opened, or somebody writes: whoever uses it says so
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if said == "ok" else " ".join(str(said).split())
