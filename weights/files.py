"""Writes that survive a power cut: temporary file, fsync, rename, fsync of the folder. Reads of bounded size.

Anybody who can write to a folder can put a link, a pipe or a device there. So a read only accepts a regular file of a bounded
size and follows no link below the root, and a write replaces anything that has the name.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from contracts.errors import Unavailable, WeightsRefused

_NOT_A_FILE = {errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ENODEV, errno.ENAMETOOLONG, errno.EISDIR}
"""The errors of `open` for a link, a socket, a file in the place of a folder, or a device without a driver."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_durably(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Write `chunks` to `path`, atomically; one writer per path at a time. Raises Unavailable: disk full, `path` is unchanged."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with full_disk_named(path):
            _clear(temporary)  # never open an existing one: a link leads elsewhere, a pipe waits for a reader
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            if path.is_dir() and not path.is_symlink():
                _clear(path)
            temporary.replace(path)
            sync_folder(path.parent)
    except (OSError, Unavailable):
        temporary.unlink(missing_ok=True)
        raise


def read_file(root: Path, path: str, start: int, most: int) -> bytes:
    """At most `most` bytes from `start` on of the file at `path` below `root`. Raises as `folder_below`."""
    with _opened_below(root, path) as file:
        file.seek(start)
        return file.read(most)


def read_small(root: Path, path: str, most: int) -> bytes:
    """All of the file at `path` below `root`. Raises as `read_file`, and WeightsRefused: `too_long`, more than `most` bytes."""
    with _opened_below(root, path) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise too_long(path, most)
    return content


def too_long(path: str, most: int) -> WeightsRefused:
    """The error for an object that is larger than its kind can be."""
    return WeightsRefused("too_long", f"{path} is longer than {most} bytes: see who wrote it, and remove it", path=path)


@contextmanager
def folder_below(root: Path, path: str) -> Iterator[int]:
    """A descriptor of the folder at `path` below `root`, "" for `root` itself. No link below `root` is followed.

    Raises FileNotFoundError; WeightsRefused: `not_a_file`: it is of another kind, or reached through a link; Unavailable.
    """
    with _read_failures_named(root / path):
        folder = os.open(root, _FOLDER)
        try:
            for part in path.split("/") if path else ():
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


@contextmanager
def _opened_below(root: Path, path: str) -> Iterator[BinaryIO]:
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as parent, _read_failures_named(root / path):
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _not_a_file(root / path)
        with os.fdopen(descriptor, "rb") as file:
            yield file


@contextmanager
def _read_failures_named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise _not_a_file(path) from error
        raise Unavailable(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def _not_a_file(path: Path) -> WeightsRefused:
    return WeightsRefused(
        "not_a_file",
        f"{path} is not a regular file, or is reached through a link: see who made it, and remove it",
        path=str(path),
    )


def _clear(path: Path) -> None:
    """Make the name free. A folder is moved aside, never emptied."""
    if path.is_dir() and not path.is_symlink():
        path.replace(path.with_name(f"{path.name}.junk-{secrets.token_hex(4)}"))
    else:
        path.unlink(missing_ok=True)


def make_folder_durably(folder: Path) -> None:
    """Create `folder` and its missing parents, each entry on disk before the next. Raises Unavailable: the disk is full."""
    if not folder.is_dir():
        make_folder_durably(folder.parent)
        with full_disk_named(folder):
            folder.mkdir(exist_ok=True)
    # Also if it exists: the process that made it may have died before this line.
    sync_folder(folder.parent)


def make_folders_below(root: Path, path: str) -> Path:
    """Create the folder at `path` below `root`; other things in its place are moved aside, except in the first. Raises Unavailable."""
    place = root
    first, *_ = parts = path.split("/")
    try:
        make_folder_durably(root)
        for part in parts:
            place = place / part
            if os.path.lexists(place) and not stat.S_ISDIR(place.lstat().st_mode):
                if part == first:
                    raise Unavailable(
                        f"{place} is a link or not a folder: remove it; if you need a link, link {root} instead",
                        path=str(place),
                    )
                place.replace(place.with_name(f"{place.name}.junk-{secrets.token_hex(4)}"))
            make_folder_durably(place)
    except OSError as error:
        raise Unavailable(f"{place} cannot be made: {error.strerror}", path=str(place)) from error
    return place


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn "no space left" into `Unavailable`, saying where and what to free."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
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
