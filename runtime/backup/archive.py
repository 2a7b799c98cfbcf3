"""The file of a backup: a tar archive that names its release first, and the hash of everything last.

    header.json              which release, home and moment: see `BackupHeader`
    home/...                 files of the home
    tables/<table>/<number>  the rows of a PostgreSQL table, in pieces of COPY's text
    weights/...              objects of a bucket
    contents.json            name, size and blake3 of all of these; then its own blake3

In: pieces of files. Out: one file, which exists whole or not at all. Waits for: the disk. Nothing is held in memory but one piece.
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

import msgspec
from blake3 import blake3

from contracts.errors import Conflict, Damaged, InvalidSettings, Unavailable
from contracts.files import open_plain

FORMAT = 1
HEADER, CONTENTS = "header.json", "contents.json"
PIECE_BYTES = 2**22
_MOST_BYTES = {HEADER: 2**20, CONTENTS: 2**28}
"""Of what is read into memory; a million files have contents of 200 MB."""
_FOLDERS = ("home", "tables", "weights")


class BackupHeader(msgspec.Struct, frozen=True):
    """What a backup is of."""

    format: int
    release: str
    schema: str
    """The newest migration of its database."""
    policy: str
    run: str
    home: str
    """Where it was taken; paths in its settings begin with it."""
    taken_at: float
    """UTC epoch seconds."""
    database: Literal["sqlite", "postgresql"]
    log: Literal["home", "kafka"]
    """With Kafka, the records are not in the backup."""
    weights: Literal["home", "bucket", "left out"]
    ends: dict[str, dict[str, int]]
    """Where each partition of the log ended when the backup was taken, by topic."""
    days: tuple[str, ...]
    """Names of the partitions of PostgreSQL's tables."""


class _Entry(msgspec.Struct, frozen=True):
    num_bytes: int
    hash: str


class BackupWriter:
    """Writes a backup; see `writing`."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._tar = archive
        self._entries: dict[str, _Entry] = {}
        self.num_bytes = 0

    def add(self, name: str, file: BinaryIO, num_bytes: int) -> None:
        """Copy the first bytes of a file. Raises Unavailable if it has fewer."""
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = num_bytes, 0o600, int(time.time())
        hashing = _Hashing(file)
        try:
            self._tar.addfile(info, hashing)
        except OSError as error:
            if not hashing.has_ended:
                raise  # the disk is full
            raise Unavailable(f"{name} became shorter while it was read: take the backup again") from error
        self._entries[name] = _Entry(num_bytes, hashing.hash.hexdigest())
        self.num_bytes += num_bytes

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a small file."""
        self.add(name, io.BytesIO(content), len(content))

    def finish(self) -> None:
        """Write the contents."""
        listed = msgspec.json.encode(self._entries)
        self.add_bytes(CONTENTS, listed + b"\n" + blake3(listed).hexdigest().encode())
        self._tar.close()


class _Hashing(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash, self.has_ended = file, blake3(), False

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.hash.update(piece)
        self.has_ended = len(piece) < size
        return piece


@contextmanager
def writing(path: Path) -> Iterator[BackupWriter]:
    """A writer whose file gets its name once the block ends without an error.

    Raises Conflict: the file exists; Unavailable: the disk is full, or the folder does not exist.
    """
    taken = Conflict(f"{path} exists: a backup overwrites nothing; name another file", path=str(path))
    if path.exists():
        raise taken
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            archive = tarfile.open(fileobj=file, mode="w|", bufsize=PIECE_BYTES)  # noqa: SIM115 closed below
            try:
                yield (writer := BackupWriter(archive))
                writer.finish()
            finally:
                with suppress(OSError, ValueError):  # after an error; a stream complains later if nobody closes it
                    archive.close()
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # unlike a rename, it refuses a name that is taken
        sync_folder(path.parent)
    except FileExistsError as error:
        raise taken from error
    except OSError as error:
        says = f"{path} cannot be written ({error.strerror or error}): free space there, or name another place"
        raise Unavailable(says) from error
    finally:
        part.unlink(missing_ok=True)


def read_header(path: Path, schema: str, release: str) -> BackupHeader:
    """The header of a backup.

    Raises InvalidSettings: the file is missing or no backup, or this release cannot restore it; Damaged: its beginning cannot be read.
    """
    with _opened(path) as archive:
        first = archive.next()
        if first is None or first.name != HEADER:
            raise _no_backup(path)
        content = _content(archive, first, path)
    try:
        said = msgspec.json.decode(content)
        number, maker = said["format"], said["release"]
        header = msgspec.convert(said, BackupHeader) if number == FORMAT else None
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError) as error:  # not JSON, not text, no such field
        raise _damaged(path, f"its header cannot be read: {error}") from error
    advice = "restore it with the release that wrote it"
    if header is None:
        kind = f"format {number}, written by {maker}; {release} reads format {FORMAT}"
        raise InvalidSettings(f"{path} is a backup of {kind}: {advice}")
    if header.schema != schema:
        kind = f"{header.release} with schema {header.schema}; {release} has schema {schema}"
        raise InvalidSettings(f"{path} is a backup of {kind}: {advice}, then upgrade with `millrace init` of this one")
    return header


def unpack(path: Path, folder: Path) -> None:
    """Write everything of a backup below a folder, and compare each hash.

    Raises Damaged: something is missing, too much, or not as it was written. The folder may hold a part.
    """
    found: dict[str, _Entry] = {}
    listed: bytes | None = None
    with _opened(path) as archive:
        for member in archive:
            if listed is not None:
                raise _damaged(path, f"{member.name} comes after the contents")
            if member.name == CONTENTS:
                listed = _content(archive, member, path)
            else:
                found[member.name] = _write(archive, member, folder, path)
    if listed is None:
        raise _damaged(path, "it ends before its contents: it was cut off")
    entries, _, digest = listed.rpartition(b"\n")
    if blake3(entries).hexdigest().encode() != digest:
        raise _damaged(path, "the list of its contents was changed")
    wanted = msgspec.json.decode(entries, type=dict[str, _Entry])  # ours: its hash is right
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise _damaged(path, f"{name} is not as it was written")


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: Path) -> _Entry:
    """Write one file. Names lead below the folder, whoever made the archive."""
    place = PurePosixPath(member.name)
    is_inside = bool(place.parts) and place.parts[0] in _FOLDERS and ".." not in place.parts and not place.is_absolute()
    source = _plain(archive, member)
    if source is None or not (is_inside or member.name == HEADER):
        raise _damaged(path, f"it holds {member.name!r}, which is no file of a backup")
    target, digest, num_bytes = folder / place, blake3(), 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            while piece := source.read(PIECE_BYTES):
                digest.update(piece)
                num_bytes += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise _damaged(path, f"it holds {member.name} twice") from error
    return _Entry(num_bytes, digest.hexdigest())


def _plain(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes] | None:
    """A file that is in the archive byte for byte. None: a link, a folder, or a sparse file, whose holes have any size."""
    is_plain = member.type in {tarfile.REGTYPE, tarfile.AREGTYPE} and member.sparse is None
    return archive.extractfile(member) if is_plain else None


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    source, most = _plain(archive, member), _MOST_BYTES[member.name]
    if source is None or member.size > most:
        raise _damaged(path, f"{member.name} is no plain file of at most {most} bytes")
    return source.read()


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with open_plain(path) as file, tarfile.open(fileobj=file, mode="r|", bufsize=PIECE_BYTES) as archive:
            yield archive
    except FileNotFoundError as error:
        raise InvalidSettings(f"{path} does not exist: name a file that `millrace backup` wrote") from error
    except tarfile.TarError as error:
        with suppress(OSError), open_plain(path) as file:
            if not file.read(len(HEADER)) == HEADER.encode():
                raise _no_backup(path) from error
        raise _damaged(path, str(error)) from error
    except (ValueError, EOFError) as error:  # a header with impossible numbers
        raise _damaged(path, str(error)) from error
    except OSError as error:
        if error.filename == str(path):
            raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from error
        raise Unavailable(f"the backup cannot be unpacked ({error.strerror or error}): free disk space") from error


def _no_backup(path: Path) -> InvalidSettings:
    return InvalidSettings(f"{path} is not a backup of Millrace: name a file that `millrace backup` wrote")


def _damaged(path: Path, problem: str) -> Damaged:
    return Damaged(f"the backup {path} is damaged: {problem}. Nothing was changed; take another backup", path=str(path))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
