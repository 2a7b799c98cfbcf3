"""How far each import has come: a file `imports/ID.json` in the home. Without it an import begins again, and the join drops what it repeats."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from contracts.errors import Conflict, NotFound
from runtime.private_files import make_private
from weights.files import write_durably

_FOLDER = "imports"
_CHUNK = 2**20


class ImportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Of one import. Times: UTC epoch seconds; None: not yet."""

    id: str
    source: str
    content: str
    """What it imports, and how: a hash of file, format, task and maps. A signal that the task declares later is imported by another run."""
    started_at: float
    next_byte: int = 0
    """Rows that end before it are logged."""
    done_at: float | None = None
    undone_at: float | None = None


@contextmanager
def claimed_imports(home: Path) -> Iterator[None]:
    """Lock the imports of a home: two at once could not tell which rows are logged. Raises Conflict: another command runs."""
    folder = home / _FOLDER
    folder.mkdir(exist_ok=True)
    make_private(folder)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another import into {home} is running; wait until it ends") from None
        yield


def hash_of(file: BinaryIO, *how: str) -> str:
    """Hash of a file and of how it is read."""
    digest = hashlib.blake2b("\0".join(how).encode(), digest_size=16)
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def find(home: Path, content: str, source: str, now: float) -> ImportProgress:
    """The import of this content, or a new one. One that was taken back is not resumed: its id stays with what it logged."""
    others = [held for held in all_of(home) if held.content == content]
    if (open_one := next((held for held in others if held.undone_at is None), None)) is not None:
        return open_one
    name = hashlib.blake2b(f"{content} {len(others)}".encode(), digest_size=6).hexdigest()
    return ImportProgress(id=name, source=source, content=content, started_at=now)


def get(home: Path, import_id: str) -> ImportProgress:
    """Raises NotFound: this home has no such import."""
    held = {found.id: found for found in all_of(home)}
    if import_id not in held:
        known = ", ".join(f"{found.id} ({found.source})" for found in held.values()) or "none"
        raise NotFound(f"{home} has no import {import_id!r}; it has {known}")
    return held[import_id]


def write(home: Path, progress: ImportProgress) -> None:
    """Durable when it returns. Raises Unavailable: the disk is full."""
    write_durably(home / _FOLDER / f"{progress.id}.json", [msgspec.json.encode(progress)], mode=0o600)


def all_of(home: Path) -> list[ImportProgress]:
    """The imports of a home, oldest first."""
    paths = sorted((home / _FOLDER).glob("*.json"))
    return sorted(
        (msgspec.json.decode(path.read_bytes(), type=ImportProgress) for path in paths), key=lambda it: it.started_at
    )
