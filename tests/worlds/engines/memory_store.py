"""A weight store in memory: the real codec and the real reader over dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from weights.codec.delta import CODEC, encode
from weights.codec.history import History
from weights.reader import Hop, WeightReader, advance_history
from weights.tensors import Tensor, Tensors, root_of
from weights.versions.layout import edge_name
from weights.versions.manifest import NO_HISTORY, Chunk, Manifest

POLICY = "demo"


class StoreInMemory(WeightReader):
    """Versions in memory, a chain; `staged` tells what was asked for, as (version, base version or None)."""

    def __init__(self, run: str = "test") -> None:
        super().__init__()
        self._run = run
        self.staged: list[tuple[int, int | None]] = []
        self.weights: dict[int, Tensors] = {}
        self._states: dict[int, History] = {}
        self._edges: dict[int, dict[str, Manifest]] = {}
        self._chunks: dict[str, bytes] = {}

    def add(self, version: int, tensors: Tensors, parent: int | None = None) -> None:
        """Publish a version; without a parent, in full."""
        base = None if parent is None else self.weights[parent]
        history = History() if parent is None else self._states[parent].copy()
        encoded = encode(base, tensors, history)
        (chunk,) = encoded.chunks
        self._chunks[chunk.blake3] = encoded.payload
        manifest = Manifest(
            policy=POLICY,
            run=self._run,
            version=version,
            parent=parent,
            base_version=parent,
            base_root=None if base is None else root_of(base),
            target_root=encoded.target_root,
            codec=CODEC,
            history=None if base is None else history.digest,
            history_after=NO_HISTORY if base is None else history.next_digest(encoded.target_root),
            chunks=(chunk,),
            full_bytes=encoded.full_bytes,
            num_changed=encoded.num_changed,
            num_weights=encoded.num_weights,
            created_at=0.0,
            step=version,
            epoch=0,
            num_samples=0,
        )
        advance_history(history, manifest, encoded.moves)
        self.weights[version], self._states[version] = tensors, history
        self._edges[version] = {edge_name(manifest): manifest}

    def damage(self, version: int) -> None:
        """Turn a bit of a version's payload."""
        (chunk,) = self.manifest(POLICY, version).chunks
        content = bytearray(self._chunks[chunk.blake3])
        content[-1] ^= 1
        self._chunks[chunk.blake3] = bytes(content)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        assert policy == POLICY
        return self._chunks[chunk.blake3][start:]

    def load_state(self, policy: str, version: int) -> tuple[Tensors, History]:
        self.staged.append((version, None))
        return super().load_state(policy, version)

    def stage_onto(
        self, policy: str, version: int, base_version: int, base: Mapping[str, Tensor], history: History | None = None,
        *, base_root: str | None = None, payload: Callable[[Manifest], bytes] | None = None,
    ) -> list[Hop]:  # fmt: skip
        self.staged.append((version, base_version))
        return super().stage_onto(policy, version, base_version, base, history, base_root=base_root, payload=payload)

    def read_small(self, path: str, most: int) -> bytes | None:
        policy, folder, name = path.split("/")
        assert policy == POLICY
        edge = self._edges.get(int(folder[1:]), {}).get(name)
        return None if edge is None else msgspec.json.encode(edge)[:most]

    def _numbers(self, policy: str) -> list[int]:
        assert policy == POLICY
        return sorted(self._edges)

    def _names(self, policy: str, version: int) -> list[str]:
        assert policy == POLICY
        return list(self._edges.get(version, {}))
