"""Where versions live: the port, and a folder. In: manifests and payloads. Out: the same, verified. Waits for: the disk.

<root>/<policy>/chunks/e000007/<blake3>                       first: parts of payloads, named by the epoch of the trainer
                                                              that wrote them and by what they hold
<root>/<policy>/chunks/<blake3>                               the same of no trainer, or of before there were epochs
<root>/<policy>/v000012/step.json full.json fold-000004.json  second: edges; a version exists from the moment its primary
                                                              edge does, `step`, or `full` if it has no parent
"""

from __future__ import annotations

import fcntl
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from contracts.errors import InvalidValue, Unavailable
from contracts.settings import Settings
from contracts.weights.files import make_folder_durably, read_file, sync_folder, write_durably
from contracts.weights.key_files import keyring_of
from contracts.weights.layout import (
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
    read_edge,
    version_folder,
)
from contracts.weights.manifest import Chunk, Manifest
from contracts.weights.presence import presence_path
from contracts.weights.reader import WeightReader

_MOST_TEXT_BYTES = 2**26
"""Of a manifest; what is longer is none."""


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
    def write_presence(self, policy: str, name: str, text: bytes) -> None:
        """See `contracts.weights.presence`."""

    @abstractmethod
    def presences(self, policy: str) -> list[bytes]:
        """See `contracts.weights.presence`."""

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
        name = edge_name(offered)
        if (text := self._text(policy, version, name)) is None:
            return False
        check_same(read_edge(text, policy, version, name, self._keyring), offered)
        return True


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
            make_folder_durably(path.parent)
            if self._is_published(manifest):
                # A publisher killed right after its rename has not made the name durable.
                sync_folder(path.parent)
                return
            written: list[Path] = []
            try:
                for chunk, part in parts:
                    self._write_chunk(manifest.policy, chunk, part, written)
                write_durably(path, [msgspec.json.format(msgspec.json.encode(manifest))])
            except Unavailable:
                for leftover in (path, *written):
                    leftover.unlink(missing_ok=True)
                raise

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `WeightReader.chunk`."""
        try:
            return read_file(self.root / chunk_path(policy, chunk.name), start, max(chunk.num_bytes - start, 0))
        except FileNotFoundError as error:
            raise no_chunk(policy, chunk) from error

    def versions(self, policy: str) -> list[int]:
        """See `WeightReader.versions`."""
        folder = self.root / policy_folder(policy)
        manifests = (path for name in PRIMARIES for path in folder.glob(f"v*/{name}"))
        names = (VERSION.fullmatch(path.parent.name) for path in manifests)
        return sorted({int(name[1]) for name in names if name})

    def chunks(self, policy: str) -> list[StoredChunk]:
        """See `WeightStore.chunks`."""
        folder = self.root / chunk_folder(policy)
        if not folder.is_dir():
            return []
        found = [(name, path.stat()) for path in folder.rglob("*") if is_chunk(name := str(path.relative_to(folder)))]
        return [StoredChunk(name, status.st_size, status.st_mtime) for name, status in sorted(found)]

    def remove_chunks(self, policy: str, names: Iterable[str], before: float) -> list[str]:
        """See `WeightStore.remove_chunks`; what dead writers left goes with them."""
        with self._turn(policy):
            for leftover in (self.root / chunk_folder(policy)).rglob("*.tmp"):
                _remove(leftover, before)
            return [name for name in names if _remove(self.root / chunk_path(policy, name), before)]

    def write_presence(self, policy: str, name: str, text: bytes) -> None:
        """See `contracts.weights.presence`."""
        path = self.root / presence_path(policy, name)
        make_folder_durably(path.parent)
        write_durably(path, [text])

    def presences(self, policy: str) -> list[bytes]:
        """See `contracts.weights.presence`."""
        folder = self.root / policy_folder(policy) / "replicas"
        return [path.read_bytes() for path in sorted(folder.glob("*.json"))]

    def _write_chunk(self, policy: str, chunk: Chunk, part: memoryview, written: list[Path]) -> None:
        path = self.root / chunk_path(policy, chunk.name)
        if path.exists() and path.stat().st_size == chunk.num_bytes:
            os.utime(path)  # somebody needs it again: whoever prunes now must leave it
            sync_folder(path.parent)
            return
        make_folder_durably(path.parent)
        written.append(path)
        write_durably(path, [part])

    def _text(self, policy: str, version: int, name: str) -> bytes | None:
        try:
            return read_file(self.root / version_folder(policy, version) / name, 0, _MOST_TEXT_BYTES)
        except FileNotFoundError:
            return None

    def _texts(self, policy: str, version: int) -> dict[str, bytes]:
        folder = self.root / version_folder(policy, version)
        names = [path.name for path in folder.glob("*.json") if EDGE.fullmatch(path.name)]
        return {name: text for name in names if (text := self._text(policy, version, name)) is not None}

    @contextmanager
    def _turn(self, policy: str) -> Iterator[None]:
        folder = self.root / policy_folder(policy)
        make_folder_durably(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _remove(path: Path, before: float) -> bool:
    try:
        if path.stat().st_mtime >= before:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def open_weight_store(settings: Settings) -> WeightStore:
    """The store of a home, which takes only versions that a trusted key signed. Nothing is asked yet.

    Raises:
        InvalidSettings: no key is trusted, or `weights_url` or an AWS_* variable cannot be used.
    """
    return open_any_store(settings, keyring_of(settings))


def open_any_store(settings: Settings, keyring: Verifier | None) -> WeightStore:
    """The store of a home: a bucket if `weights_url` names one, else a folder; `keyring` None takes anybody's versions.

    Raises:
        InvalidSettings: `weights_url` or an AWS_* variable cannot be used.
    """
    return open_store_at(settings.weights_url or str(settings.weights), keyring)


def open_store_at(place: str, keyring: Verifier | None) -> WeightStore:
    """The store at `s3://bucket/prefix`, or in a folder; `keyring` None takes anybody's versions.

    Raises:
        InvalidSettings: the URL or an AWS_* variable cannot be used.
    """
    if "://" not in place:
        return FolderWeightStore(Path(place), keyring)
    from contracts.weights.object_store import open_objects  # noqa: PLC0415 embedded need not load the client

    return open_objects(place, keyring=keyring)
