"""A reader of versions, written from docs/weight-format.md alone; slow and plain. It shares no code with the codec.

Bytes and the old words in, the new tensors and who moved where out. The numbers in brackets are sections of that page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tests.unit.weights.format_coder import Head, check, model_of, read_changes, unpack, words_of
from weights.tensors import Tensor, Tensors

FIELDS = (
    "schema", "policy", "run", "version", "parent", "base_version", "base_root", "target_root", "codec", "history",
    "history_after", "chunks", "full_bytes", "num_changed", "num_weights", "created_at", "step", "epoch", "num_samples",
    "key", "signature",
)  # fmt: skip
NULLABLE = {"key", "signature"}


class Read(NamedTuple):
    """A version."""

    tensors: Tensors
    digest: str
    """Of the history after it."""
    states: dict[str, list[int]]
    """The history after it."""


def read_version(
    manifest_text: bytes,
    payload: bytes,
    base: Tensors | None = None,
    digest: str = "0",
    states: Mapping[str, list[int]] | None = None,
) -> Read:
    """Decode one edge. Raises WeightsRefused."""
    manifest = json.loads(manifest_text)
    check(manifest["schema"] in {2, 3}, "schema")
    check(manifest["codec"] == "context-rans/1", "unknown_codec")
    known = {} if manifest["base_root"] is None else base or {}
    check(manifest["base_root"] in {None, root(known)}, "wrong_base")
    coded_with = manifest["history"] not in {None, "0"}
    check(not coded_with or digest == manifest["history"], "wrong_history")
    past = dict(states or {}) if coded_with else {}
    start = 0
    for chunk in manifest["chunks"]:
        part = payload[start : start + chunk["num_bytes"]]
        check(blake3(part).hexdigest() == chunk["blake3"], "payload_hash")
        start += chunk["num_bytes"]
    check(start == len(payload), "payload_size")

    tensors, moves = _decode(payload, known, past)
    check(root(tensors) == manifest["target_root"], "target_root")
    if manifest["history"] == "0":
        digest, states = "0", {}
    after = blake3(f"{digest} {manifest['target_root']}".encode()).digest()[:16].hex()
    if after != manifest["history_after"]:
        return Read(tensors, "0", {})
    return Read(tensors, after, {name: _aged((states or {}).get(name), moved) for name, moved in moves.items()})


def root(tensors: Tensors) -> str:
    """[1]"""
    leaves = [
        [name, tensor.dtype, list(tensor.shape), blake3(tensor.data.tobytes()).hexdigest()]
        for name, tensor in tensors.items()
    ]
    text = json.dumps(sorted(leaves), separators=(",", ":"), ensure_ascii=False)
    return blake3(text.encode()).hexdigest()


def signed_bytes(manifest_text: bytes) -> bytes:
    """[2]"""
    manifest = json.loads(manifest_text)
    fields = {field: manifest.get(field) if field in NULLABLE else manifest[field] for field in FIELDS}
    fields |= {"signature": None, "created_at": float(fields["created_at"])}
    fields["chunks"] = [{"blake3": chunk["blake3"], "num_bytes": chunk["num_bytes"]} for chunk in fields["chunks"]]
    return b"millrace-manifest\n" + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(payload: bytes, known: Tensors, past: dict[str, list[int]]) -> tuple[Tensors, dict[str, Any]]:
    check(payload[:4] == b"MRD2" and len(payload) >= 8, "corrupt_payload")
    place = 8 + int.from_bytes(payload[4:8], "little")
    layout, tables, heads = msgspec.msgpack.decode(unpack(payload[8:place]))
    if layout is None:
        layout = [[name, known[name].dtype, list(known[name].shape)] for name in sorted(known)]
    check([name for name, _, _ in layout] == sorted({name for name, _, _ in layout}), "corrupt_payload")
    check(len(heads) == len(layout), "corrupt_payload")
    models = {dtype: model_of(columns) for dtype, columns in tables.items()}
    tensors: Tensors = {}
    moves: dict[str, Any] = {}
    for (name, dtype, shape), items in zip(layout, heads, strict=True):
        head = Head(*items[:7])
        body = payload[place : place + head.num_bytes]
        place += head.num_bytes
        old = known.get(name)
        if old is not None and (old.dtype, list(old.shape)) != (dtype, shape):
            old = None
        if head.way in {0, 1}:
            assert old is not None
            words = words_of(old)
            moves[name] = (words.size, [])
            if head.way == 1:
                changes = read_changes(old, past.get(name), models[dtype], head, body)
                moves[name] = (words.size, [(where, down) for where, down, _ in changes])
                words = words.copy()
                for where, _, new in changes:
                    words[where] = new
            data = words.view(np.uint8).copy()
        elif head.way == 2:
            data = _dense(old, head, body)
        else:
            check(head.way == 3, "corrupt_payload")
            data = np.frombuffer(body, np.uint8).copy()
        tensors[name] = Tensor(dtype, tuple(shape), data)
    check(place == len(payload), "corrupt_payload")
    return tensors, moves


def _dense(old: Tensor | None, head: Head, body: bytes) -> npt.NDArray[np.uint8]:
    """[4]"""
    count, width = head.words
    plain = unpack(body)
    check(len(plain) == count * width, "corrupt_payload")
    words = np.frombuffer(plain, np.uint8).reshape(width, count).T.tobytes()
    new = np.frombuffer(words, f"<u{width}").copy()
    if old is not None:
        before = words_of(old)
        check((before.size, before.itemsize) == (count, width), "corrupt_payload")
        everything = (1 << (8 * width)) - 1
        for index, (was, code) in enumerate(zip(before.tolist(), new.tolist(), strict=True)):
            new[index] = (was + ((code >> 1) ^ -(code & 1))) & everything
    return new.view(np.uint8)


def _aged(states: list[int] | None, moved: tuple[int, list[tuple[int, int]]]) -> list[int]:
    """[5]"""
    size, changes = moved
    aged = [state - 8 if state & 0x78 > 8 else 0 for state in states or [0] * size]
    for where, down in changes:
        state = aged[where]
        streak = min((state & 7) + 1, 7) if state and state >> 7 == down else 1
        aged[where] = down << 7 | 15 << 3 | streak
    return aged
