"""Temporary folders in memory, for tests that write many homes and look at no disk.

Every commit and every checkpoint of a home waits for the disk: that is most of such a test's time. Slow tests get folders on the disk
unless they ask for one of these, because some look at disks, or at sandboxes that see no memory of the host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

MEMORY = Path("/dev/shm")  # noqa: S108 what is made there has a name of its own
_ROOM = 4 * 2**30


def has_room() -> bool:
    """Whether there is memory for the folders of many tests."""
    return MEMORY.is_dir() and disk_usage(MEMORY).free > _ROOM


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder that is removed at the end; on the disk where memory has no room."""
    with tempfile.TemporaryDirectory(
        prefix="millrace-", dir=MEMORY if has_room() else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)
