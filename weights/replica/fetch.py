"""Fetches payloads for a replica. In: chunks from a store. Out: payloads. Waits for: the store.

<folder>/<blake3>.part   the bytes so far; a fetch that is resumed only asks for the rest
<folder>/<blake3>        a whole chunk, verified before it gets this name and again when it is read
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
    """The part of a weight store that fetching needs."""

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """The bytes of a chunk from `start` on, not verified. Raises NotFound, Unavailable."""


class ChunkFolder:
    """Chunks of one policy on disk. Nothing is synced: bytes lost in a power cut are noticed on reading, and fetched again."""

    def __init__(self, folder: Path, source: ChunkSource, policy: str, *, connections: int, fault: FaultPoint) -> None:
        self._folder, self._source, self._policy = folder, source, policy
        self._connections, self._fault = connections, fault
        make_folder_durably(folder)

    def fetch(self, manifests: Iterable[Manifest]) -> None:
        """Fetch the missing bytes of these payloads. Raises WeightsRefused: `payload_hash`, `corrupt_manifest`; EdgeGone; Unavailable."""
        wanted = {chunk: manifest for manifest in manifests for chunk in manifest.chunks}
        same: dict[str, list[Chunk]] = {}
        for chunk in wanted:
            same.setdefault(chunk.blake3, []).append(chunk)
            if chunk.num_bytes != same[chunk.blake3][0].num_bytes:  # two would write to one file
                raise WeightsRefused("corrupt_manifest", f"chunk {chunk.blake3} is said to have two sizes")
        with ThreadPoolExecutor(self._connections) as pool:
            # Equal chunks of two trainers are one file here, so they are fetched one after the other.
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
        """The payload of a manifest whose chunks were fetched; decoding verifies it."""
        return b"".join((self._folder / chunk.blake3).read_bytes() for chunk in manifest.chunks)

    def clear(self) -> None:
        """Remove all chunks, once their version is in a slot."""
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
        # Damage on this disk is noticed here and costs one more chunk: the second round starts from nothing.
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
            f"the store holds other bytes as chunk {chunk.blake3}: restore the right ones, or remove it so that another route is used",
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
