"""Manifests that vouch for a payload, right or wrong, for the tests of the codec; no store, no signature."""

from __future__ import annotations

from typing import Any

import msgspec
import zstandard
from blake3 import blake3

from weights.codec.delta import CODEC, Encoded, split_chunks
from weights.codec.history import History
from weights.tensors import Tensors, root_of
from weights.versions.manifest import NO_HISTORY, Chunk, Manifest


def manifest_of(
    base: Tensors | None, encoded: Encoded, history: History | None = None, *, version: int = 1, base_version: int = 0
) -> Manifest:
    """The edge that `encoded` is: a step of the version before, or from elsewhere a fold, or full without a base."""
    return Manifest(
        policy="golden",
        run="run-1",
        version=version,
        parent=version - 1 if version else None,
        base_version=None if base is None else base_version,
        base_root=None if base is None else root_of(base),
        target_root=encoded.target_root,
        codec=CODEC,
        history=None if history is None else history.digest,
        history_after=_history_after(base, encoded, history),
        chunks=encoded.chunks,
        full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=encoded.num_weights,
        created_at=1780000000.25 + version,
        step=7 * version,
        epoch=0,
        num_samples=32,
    )


def resealed(manifest: Manifest, payload: bytes) -> Manifest:
    """A manifest that vouches for other bytes, so that a test reaches the decoder behind the hashes."""
    chunks = tuple(Chunk(blake3(part).hexdigest(), len(part)) for part in split_chunks(payload))
    return msgspec.structs.replace(manifest, chunks=chunks)


def open_payload(payload: bytes) -> tuple[list[Any], bytes]:
    """The header as lists, and the bodies."""
    end = 8 + int.from_bytes(payload[4:8], "little")
    return msgspec.msgpack.decode(zstandard.decompress(payload[8:end])), payload[end:]


def close_payload(header: Any, bodies: bytes) -> bytes:
    """Invert `open_payload`; a header of bytes is taken as its msgpack."""
    text = zstandard.compress(header if isinstance(header, bytes) else msgspec.msgpack.encode(header), 1)
    return b"MRD2" + len(text).to_bytes(4, "little") + text + bodies


def _history_after(base: Tensors | None, encoded: Encoded, history: History | None) -> str | None:
    if base is None:
        return NO_HISTORY
    return None if history is None else history.next_digest(encoded.target_root)
