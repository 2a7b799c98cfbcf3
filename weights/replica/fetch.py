"""Payloads on their way to a replica. In: chunks from a store. Out: payloads. Waits for: the store.

<folder>/<blake3>.part   the bytes that came so far; a fetch that is taken up again asks for the rest only
<folder>/<blake3>        a whole chunk, verified when it got this name and again when it is read
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from contracts.errors import NotFound, WeightsRefused
from contracts.faults import FaultPoint
from weights.files import full_disk_named, make_folder_durably
from weights.versions.layout import is_digest
from weights.versions.manifest import Chunk, Manifest
from weights.versions.route import EdgeGone

_PIECE_BYTES = 2**20


class ChunkSource(Protocol):
    """The part of a weight store that is needed here."""

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """The bytes of a chunk from `start` on, not verified. Raises NotFound, Unavailable."""


class ChunkFolder:
    """Chunks of one policy on disk. Nothing is synced: what a power cut takes is seen when it is read, and fetched again."""

    def __init__(self, folder: Path, source: ChunkSource, policy: str, *, connections: int, fault: FaultPoint) -> None:
        self._folder = folder
        self._source = source
        self._policy = policy
        self._connections = connections
        self._fault = fault
        make_folder_durably(folder)

    def fetch(self, manifests: Iterable[Manifest]) -> None:
        """See that every chunk of these payloads is here; ask the store only for bytes that are not.

        Raises:
            WeightsRefused: `payload_hash`, the store holds other bytes than the manifest names; `corrupt_manifest`.
            EdgeGone: a chunk was removed from the store.
            Unavailable: the store is away, or the disk is full. What came so far stays.
        """
        wanted = {chunk: manifest for manifest in manifests for chunk in manifest.chunks}
        same: dict[str, list[Chunk]] = {}
        for chunk in wanted:
            same.setdefault(chunk.blake3, []).append(chunk)
        for digest, chunks in same.items():
            if len({chunk.num_bytes for chunk in chunks}) > 1:  # two would write to one file
                raise WeightsRefused("corrupt_manifest", f"chunk {digest} is said to have two sizes")
        with ThreadPoolExecutor(self._connections) as pool:
            # Those that two trainers wrote alike are one file here: they are fetched one after the other.
            jobs = {chunks[0]: pool.submit(self._fetch_all, chunks) for chunks in same.values()}
            try:
                for chunk, job in jobs.items():
                    try:
                        job.result()
                    except NotFound as error:
                        raise EdgeGone(wanted[chunk], error) from error
            finally:
                pool.shutdown(cancel_futures=True)

    def payload(self, manifest: Manifest) -> bytes:
        """The payload of a manifest whose chunks were fetched; who decodes it checks it."""
        return b"".join((self._folder / chunk.blake3).read_bytes() for chunk in manifest.chunks)

    def clear(self) -> None:
        """Forget all chunks, when the version they make is held."""
        for path in sorted(self._folder.iterdir()):
            self._fault("sweep: before a chunk")
            path.unlink()

    def _fetch_all(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._fetch(chunk)

    def _fetch(self, chunk: Chunk) -> None:
        if not is_digest(chunk.blake3):  # it becomes the name of a file
            raise WeightsRefused("corrupt_manifest", f"{chunk.blake3[:80]!r} is not the digest of a chunk")
        whole, part = self._folder / chunk.blake3, self._folder / f"{chunk.blake3}.part"
        if whole.exists() and _holds(whole, chunk):
            return
        # What a disk lost or damaged shows here, and costs one chunk more: the second round begins with nothing.
        for _ in range(2):
            self._complete(part, chunk)
            if _holds(part, chunk):
                self._fault("fetch: before a chunk gets its name")
                part.replace(whole)
                self._fault("fetch: chunk verified")
                return
            part.unlink()
        raise WeightsRefused(
            "payload_hash",
            f"the store holds other bytes as chunk {chunk.blake3}: put the right ones back, or remove it so that another way is taken",
        )

    def _complete(self, part: Path, chunk: Chunk) -> None:
        with full_disk_named(part), part.open("ab") as file:
            while (start := file.tell()) < chunk.num_bytes:
                self._fault("fetch: before a chunk")
                content = self._source.chunk(self._policy, chunk, start)[: chunk.num_bytes - start]
                if not content:
                    return
                for first in range(0, len(content), _PIECE_BYTES):
                    file.write(content[first : first + _PIECE_BYTES])
                    file.flush()
                    self._fault("fetch: part written")


def _holds(path: Path, chunk: Chunk) -> bool:
    return path.stat().st_size == chunk.num_bytes and blake3(path.read_bytes()).hexdigest() == chunk.blake3
