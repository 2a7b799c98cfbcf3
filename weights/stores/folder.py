"""Objects in a folder on one disk, below which no link is followed. Writers wait for their turn; readers need no lock."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from contracts.errors import Unavailable, WeightsRefused
from weights.files import folder_below, make_folders_below, read_file, read_small, sync_folder, write_durably
from weights.stores.port import Objects, StoredObject

_DEPTH = 2
"""Folders below a listed one: `<policy>/chunks/e000007/`. Deeper ones are not ours."""


class FolderObjects(Objects):
    """Files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = str(root)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """See `Objects.put_if_absent`."""
        if self.head(path) is not None:
            return False
        self.put(path, content)
        return True

    def put_if_unchanged(self, path: str, content: bytes, tag: str) -> bool:
        """See `Objects.put_if_unchanged`."""
        found = self.head(path)
        if found is None or found.tag != tag:
            return False
        self.put(path, content)
        return True

    def put(self, path: str, content: bytes | memoryview) -> None:
        """See `Objects.put`. Another thing in the place of a folder or of the file is moved aside or replaced."""
        folder, _, name = path.rpartition("/")
        file = make_folders_below(self.root, folder) / name
        with self._failures_named(file, "written"):
            write_durably(file, [content])

    def get(self, path: str, most: int) -> bytes | None:
        """See `Objects.get`."""
        try:
            return read_small(self.root, path, most)
        except FileNotFoundError:
            return None

    def get_range(self, path: str, start: int, end: int) -> bytes | None:
        """See `Objects.get_range`."""
        try:
            return read_file(self.root, path, start, end - start)
        except FileNotFoundError:
            return None

    def list_below(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        """See `Objects.list_below`; lists links and folders too. Links are not followed."""
        # A missing folder, or a link or a file in its place, is empty.
        with suppress(FileNotFoundError, WeightsRefused), folder_below(self.root, folder) as descriptor:
            yield from _walk(descriptor, folder, after, _DEPTH)

    def head(self, path: str) -> StoredObject | None:
        """See `Objects.head`."""
        folder, _, name = path.rpartition("/")
        try:
            with folder_below(self.root, folder) as parent:
                return _stored(path, os.stat(name, dir_fd=parent, follow_symlinks=False))
        except (FileNotFoundError, WeightsRefused):
            return None

    def delete(self, path: str) -> None:
        """See `Objects.delete`; a folder stays."""
        folder, _, name = path.rpartition("/")
        with suppress(FileNotFoundError, WeightsRefused), folder_below(self.root, folder) as parent:
            os.unlink(name, dir_fd=parent)

    def renew(self, path: str, num_bytes: int) -> bool:
        """See `Objects.renew`."""
        found = self.head(path)
        if found is None or not found.is_file or found.num_bytes != num_bytes:
            return False
        file = self.root / path
        with self._failures_named(file, "written"):
            os.utime(file)
            sync_folder(file.parent)  # a writer that was killed after its rename has not made the name durable
        return True

    @contextmanager
    def turn(self, folder: str) -> Iterator[bool]:
        """See `Objects.turn`."""
        place = make_folders_below(self.root, folder)
        with self._failures_named(place, "locked"):
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield True
        finally:
            os.close(descriptor)

    @contextmanager
    def _failures_named(self, path: Path, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{path} cannot be {done}: {error.strerror}", path=str(path)) from error


def _walk(descriptor: int, folder: str, after: str, depth: int) -> Iterator[StoredObject]:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.name < after:
                continue
            with suppress(FileNotFoundError):  # removed since
                found = _stored(f"{folder}/{entry.name}", entry.stat(follow_symlinks=False))
                yield found
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                    try:
                        yield from _walk(inner, found.path, "", depth - 1)
                    finally:
                        os.close(inner)


def _stored(path: str, status: os.stat_result) -> StoredObject:
    tag = f"{status.st_ino}-{status.st_ctime_ns}-{status.st_size}"
    return StoredObject(path, status.st_size, status.st_mtime, tag, stat.S_ISREG(status.st_mode))
