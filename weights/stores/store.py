"""Where versions live: the port, and a folder. In: manifests and payloads. Out: the same, verified. Waits for: the disk.

<root>/<policy>/chunks/e000007/<blake3>                       first: parts of payloads, named by the epoch of the trainer
                                                              that wrote them and by what they hold
<root>/<policy>/chunks/<blake3>                               the same of no trainer, or of before there were epochs
<root>/<policy>/v000012/step.json full.json fold-000004.json  second: edges; a version exists from the moment its primary
                                                              edge does, `step`, or `full` if it has no parent
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from contracts.errors import InvalidValue, Unavailable, WeightsRefused
from weights.files import make_folders_below, read_file, read_small, sync_folder, write_durably
from weights.reader import WeightReader
from weights.versions.layout import (
    EDGE,
    PRIMARIES,
    VERSION,
    Verifier,
    check_offer,
    check_same,
    chunk_folder,
    chunk_path,
    edge_name,
    edge_path,
    is_chunk,
    is_primary,
    no_chunk,
    policy_folder,
    version_folder,
)
from weights.versions.manifest import Chunk, Manifest


class StoredChunk(NamedTuple):
    """A chunk as it lies there; `written_at` in UTC epoch seconds, renewed when a publisher finds that it has it."""

    name: str
    """`Chunk.name`."""
    num_bytes: int
    written_at: float


class WeightStore(WeightReader):
    """Published versions of policies. An edge never changes once it is visible."""

    @abstractmethod
    def publish(self, manifest: Manifest, payload: bytes) -> None:
        """Make an edge durable, bytes first; a second time, with whatever payload to the same weights, is a no-op.

        What stands there and is not believed is no reason to stay: it is replaced. One of another run stays.

        Raises:
            Conflict: the version exists with other weights or another parent.
            InvalidValue: a policy name that is none, a parent or base that is not earlier, or a fold or full copy of a
                version that does not exist yet.
            Unavailable: the disk is full or the store is away; the edge stays invisible.
            WeightsRefused: the payload is not the one the manifest names, or the keyring does not take the manifest.
        """

    @abstractmethod
    def chunks(self, policy: str) -> list[StoredChunk]:
        """Everything that lies there, needed or not."""

    @abstractmethod
    def remove_chunks(self, policy: str, names: Iterable[str], before: float) -> list[str]:
        """Remove those last written before a time, UTC epoch seconds; what was removed. By `Chunk.name`."""

    @abstractmethod
    def write_small(self, path: str, text: bytes) -> None:
        """Put an object at its place below the root, durably, instead of what is there. Raises Unavailable."""

    @abstractmethod
    def list_small(self, folder: str, most: int) -> list[str]:
        """Names of objects directly in a folder, by name, the first `most` that there are. Raises Unavailable."""

    def _is_published(self, offered: Manifest) -> bool:
        """Whether an edge is there already. Raises Conflict, InvalidValue: see `publish`."""
        policy, version = offered.policy, offered.version
        primary = self._primary(policy, version)
        if primary is not None:
            check_same(primary, offered)
        elif not is_primary(offered):
            raise InvalidValue(f"version {version} does not exist: publish its step first", param="version")
        if is_primary(offered):
            return primary is not None
        edge = self._edge(policy, version, edge_name(offered))
        if isinstance(edge, Manifest):
            check_same(edge, offered)
            return True
        return False

    def _check_free(self, offered: Manifest) -> None:
        """Raises WeightsRefused: the place is taken by another run, or the policy by another publisher: nothing is written."""
        edge = self._edge(offered.policy, offered.version, edge_name(offered))
        taken = {"wrong_run", "unknown_key"} if offered.version == 0 else {"wrong_run"}
        if isinstance(edge, WeightsRefused) and edge.code in taken:
            raise edge


class FolderWeightStore(WeightStore):
    """A folder on one disk. Publishers of a policy take turns; readers need no lock."""

    def __init__(self, root: Path, keyring: Verifier | None = None) -> None:
        super().__init__(keyring)
        self.root = root

    def publish(self, manifest: Manifest, payload: bytes) -> None:
        """See `WeightStore.publish`."""
        parts = check_offer(manifest, payload, self._keyring)
        path = self.root / edge_path(manifest)
        with self._turn(manifest.policy):
            make_folders_below(self.root, version_folder(manifest.policy, manifest.version))
            if self._is_published(manifest):
                # A publisher killed right after its rename has not made the name durable.
                sync_folder(path.parent)
                return
            self._check_free(manifest)
            written: list[Path] = []
            try:
                for chunk, part in parts:
                    self._write_chunk(manifest.policy, chunk, part, written)
                write_durably(path, [msgspec.json.format(msgspec.json.encode(manifest))])
            except (Unavailable, OSError) as error:
                for leftover in (path, *written):
                    with suppress(OSError):
                        leftover.unlink(missing_ok=True)
                raise _unavailable(error, path) from error

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `WeightReader.chunk`."""
        try:
            return read_file(self.root, chunk_path(policy, chunk.name), start, max(chunk.num_bytes - start, 0))
        except FileNotFoundError as error:
            raise no_chunk(policy, chunk) from error

    def read_small(self, path: str, most: int) -> bytes | None:
        """See `WeightReader.read_small`."""
        try:
            return read_small(self.root, path, most)
        except FileNotFoundError:
            return None

    def write_small(self, path: str, text: bytes) -> None:
        """See `WeightStore.write_small`."""
        folder, _, name = path.rpartition("/")
        place = make_folders_below(self.root, folder) / name
        try:
            write_durably(place, [text])
        except OSError as error:
            raise _unavailable(error, place) from error

    def list_small(self, folder: str, most: int) -> list[str]:
        """See `WeightStore.list_small`."""
        return sorted(islice(_entries(self.root / folder), most))

    def chunks(self, policy: str) -> list[StoredChunk]:
        """See `WeightStore.chunks`."""
        names = (name for name in self._chunk_files(policy) if is_chunk(name))
        found = ((name, _status(self.root / chunk_folder(policy) / name)) for name in names)
        return sorted(
            StoredChunk(name, status.st_size, status.st_mtime)
            for name, status in found
            if status is not None and stat.S_ISREG(status.st_mode)
        )

    def remove_chunks(self, policy: str, names: Iterable[str], before: float) -> list[str]:
        """See `WeightStore.remove_chunks`; what dead writers left goes with them."""
        with self._turn(policy):
            folder = self.root / chunk_folder(policy)
            for leftover in self._chunk_files(policy):
                if leftover.endswith(".tmp"):
                    _remove(folder / leftover, before)
            return [name for name in names if _remove(self.root / chunk_path(policy, name), before)]

    def _chunk_files(self, policy: str) -> Iterator[str]:
        """Names below the folder of chunks, one folder deep; a link to a folder is none."""
        folder = self.root / chunk_folder(policy)
        for name in _entries(folder):
            status = _status(folder / name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                yield from (f"{name}/{inner}" for inner in _entries(folder / name))
            else:
                yield name

    def _write_chunk(self, policy: str, chunk: Chunk, part: memoryview, written: list[Path]) -> None:
        path = self.root / chunk_path(policy, chunk.name)
        status = _status(path)
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_size == chunk.num_bytes:
            os.utime(path)  # somebody needs it again: whoever prunes now must leave it
            sync_folder(path.parent)
            return
        make_folders_below(self.root, chunk_path(policy, chunk.name).rpartition("/")[0])
        written.append(path)
        write_durably(path, [part])

    def _numbers(self, policy: str) -> list[int]:
        folder = self.root / policy_folder(policy)
        found = ((int(name[1]), folder / name[0]) for entry in _entries(folder) if (name := VERSION.fullmatch(entry)))
        return sorted({number for number, path in found if any(_status(path / primary) for primary in PRIMARIES)})

    def _names(self, policy: str, version: int) -> list[str]:
        return [name for name in _entries(self.root / version_folder(policy, version)) if EDGE.fullmatch(name)]

    @contextmanager
    def _turn(self, policy: str) -> Iterator[None]:
        folder = make_folders_below(self.root, policy_folder(policy))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _entries(folder: Path) -> Iterator[str]:
    """Names in a folder, as they come; none if it is no folder, or only a link to one."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            return
        raise Unavailable(f"{folder} cannot be read: {error.strerror}", path=str(folder)) from error
    try:
        with os.scandir(descriptor) as entries:
            yield from (entry.name for entry in entries)
    finally:
        os.close(descriptor)


def _status(path: Path) -> os.stat_result | None:
    """Of what lies there itself, a link included; None: nothing does."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _unavailable(error: Unavailable | OSError, path: Path) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    return Unavailable(f"{path} cannot be written: {error.strerror}", path=str(path))


def _remove(path: Path, before: float) -> bool:
    try:
        status = path.lstat()
        if status.st_mtime >= before or stat.S_ISDIR(status.st_mode):
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def open_store_at(place: str, keyring: Verifier | None) -> WeightStore:
    """The store at `s3://bucket/prefix`, or in a folder; `keyring` None takes anybody's versions.

    Raises:
        InvalidSettings: the URL or an AWS_* variable cannot be used.
    """
    if "://" not in place:
        return FolderWeightStore(Path(place), keyring)
    from weights.stores.bucket import open_objects  # noqa: PLC0415 embedded need not load the client

    return open_objects(place, keyring=keyring)
