"""Writes that survive a power cut: temporary file, fsync, rename, fsync of the folder. Reads that end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import Unavailable


def write_durably(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Put `chunks` at `path`, wholly or not at all. One writer per path at a time.

    Raises:
        Unavailable: the disk is full; whatever stood at `path` before still does.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with full_disk_named(path):
            with temporary.open("wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    except (OSError, Unavailable):
        temporary.unlink(missing_ok=True)
        raise


def read_file(path: Path, start: int, most: int) -> bytes:
    """At most `most` bytes of a file from `start` on; a link is followed, a pipe or a device is never waited for.

    Raises:
        FileNotFoundError: nothing is there.
        Unavailable: it is no file, or the disk does not give it.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Unavailable(f"{path} is no file: look at who wrote it, and remove it", path=str(path))
            file.seek(start)
            return file.read(most)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def make_folder_durably(folder: Path) -> None:
    """Create `folder` and its missing parents, each entry on disk before the next.

    Raises:
        Unavailable: the disk is full.
    """
    if not folder.is_dir():
        make_folder_durably(folder.parent)
        with full_disk_named(folder):
            folder.mkdir(exist_ok=True)
    # Also when it exists: whoever made it may have died before this line.
    sync_folder(folder.parent)


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn "no space left" into `Unavailable`, saying where and what to free."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise Unavailable(
            f"no space left to write {path}: free space on that disk (old run folders, versions older than the last "
            "full one) and try again; nothing was changed",
            path=str(path),
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
