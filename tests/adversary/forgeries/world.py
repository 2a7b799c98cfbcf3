"""What is attacked: a store with versions signed by a trusted key, and replicas that are about to take the newest one.

In: a folder and a seed. Out: files that can be replaced one by one, and put back. Waits for: the disk.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3

from tests.worlds.versions import make_signer, publish_next, random_bf16
from weights.codec.delta import encode
from weights.codec.history import History
from weights.publish import publish_fold
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.tensors import Tensor, Tensors, root_of
from weights.versions.keys import (
    TrustedFolder,
    move_to_retired,
    trusted_folder,
    write_public_key,
)
from weights.versions.layout import chunk_path, edge_path
from weights.versions.manifest import Chunk, Manifest
from weights.versions.pointer import Pointer, move_pointer, pointer_path
from weights.versions.signing import Keyring, Signer

POLICY, RUN, ARM = "attacked", "genuine", "live"
NEWEST = 4
FOLD_BASE = 2
STEP, FOLD = "step", "fold"
"""Who is attacked: a replica whose way to the newest version is its step, or one that is behind and takes a fold."""
STANDS_AT = {STEP: NEWEST - 1, FOLD: FOLD_BASE}
_NUM_CHUNKS = 3
_MATRIX = (256, 64)
_MOVED = 0.22
"""Of the matrix, in rows and columns that move together: enough for factors."""
_SHARES = {"long": 0.01, "single": 0.02, "eighth": 0.03, "single_all": 1.0, "double": 0.05, "norm": 0.0}

Edits = dict[str, bytes | Path | None]
"""What an attacker puts in the place of files, by their paths in the world's folder: bytes, a link, or nothing."""


class ForgedVersion(NamedTuple):
    """A version as its publisher has it."""

    tensors: Tensors
    root: str
    history: History


class ForgedStore:
    """A store, its keys, and per victim the files of a replica that holds all but the newest version."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.signer, self.stranger, self.retired = (make_signer(f"{seed} {name}") for name in ("own", "other", "old"))
        self.keyring = self._make_keys()
        self.store = open_store_at(folder / "store", self.keyring)
        self.versions = _versions(seed)
        self.edges: dict[str, Manifest] = {}
        """Genuine edges: `step` and `fold` to the newest version, `step-3`, `full-0` and so on."""
        self.payloads: dict[str, bytes] = {}
        self._publish()
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in _files(folder / "store")}
        self.templates = {victim: self._make_replica(victim) for victim in STANDS_AT}
        self.point(NEWEST, epoch=NEWEST)
        self.files[self.pointer_file] = (folder / self.pointer_file).read_bytes()
        self.newest = self._newest()

    @property
    def pointer_file(self) -> str:
        """Which version to serve."""
        return f"store/{pointer_path(POLICY, ARM)}"

    def edge_file(self, edge: str) -> str:
        """The manifest of a genuine edge."""
        return f"store/{edge_path(self.edges[edge])}"

    def chunk_files(self, edge: str) -> list[str]:
        """The chunks of a genuine edge, in order."""
        return [f"store/{chunk_path(POLICY, chunk.name)}" for chunk in self.edges[edge].chunks]

    def own_files(self, victim: str) -> dict[str, bytes]:
        """What lies on the disk of a replica before it is attacked."""
        template = self.templates[victim]
        return {str(path.relative_to(template)): path.read_bytes() for path in _files(template)}

    def sealed(self, edge: str, payload: bytes | None = None, **changes: Any) -> Edits:
        """An edge in the place of a genuine one, signed by our own key, with hashes that are right."""
        manifest = self.edges[edge]
        chunks = manifest.chunks if payload is None else chunks_of(payload)
        changed = msgspec.structs.replace(manifest, **({"chunks": chunks} | changes))
        edits: Edits = {self.edge_file(edge): text_of(self.signer.sign(changed))}
        for chunk, part in zip(chunks, parts_of(payload), strict=True) if payload is not None else ():
            edits[f"store/{chunk_path(POLICY, chunk.name)}"] = part
        return edits

    def put(self, edits: Edits) -> None:
        """Replace files; a file that is open elsewhere stays what it was there."""
        for name, content in edits.items():
            path = self.folder / name
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                path.symlink_to(content)
            elif content is not None:
                path.write_bytes(content)

    def put_back(self, edits: Edits) -> None:
        """Undo `put` in the store."""
        self.put({name: self.files.get(name) for name in edits if name.startswith("store/")})

    def point(self, version: int, *, epoch: int) -> None:
        """Move the pointer, as its owner does; one that is damaged is replaced."""
        wanted = Pointer(policy=POLICY, run=RUN, arm=ARM, version=version, epoch=epoch)
        move_pointer(self.store, wanted, self.signer, self.keyring)

    def pointer_text(self, signer: Signer | None = None, **changes: Any) -> bytes:
        """A pointer to the newest version, changed, then signed."""
        signer = signer or self.signer
        wanted = Pointer(policy=POLICY, run=RUN, arm=ARM, version=NEWEST, epoch=NEWEST)
        named = msgspec.structs.replace(wanted, **({"key": signer.key_id} | changes), signature=None)
        message = b"millrace-pointer\n" + msgspec.json.encode(named)
        return msgspec.json.encode(msgspec.structs.replace(named, signature=signer.sign_bytes(message)))

    def _make_keys(self) -> Keyring:
        for signer in (self.signer, self.retired):
            write_public_key(trusted_folder(self.folder), signer.public_key)
        move_to_retired(self.folder, self.retired.key_id)
        return Keyring(TrustedFolder(trusted_folder(self.folder)))

    def _publish(self) -> None:
        """All versions, the newest in several chunks, and a fold to it, as small policies have no large payloads."""
        scratch, history = open_store_at(self.folder / "scratch", self.keyring), History()
        for number, version in enumerate(self.versions):
            publish_next(
                scratch, POLICY, number, base=self.versions[number - 1].tensors, target=version.tensors, run=RUN, history=history,
                signer=self.signer,
            )  # fmt: skip
        publish_fold(
            scratch, policy=POLICY, base_version=FOLD_BASE, base=self.versions[FOLD_BASE].tensors, version=NEWEST,
            target=self.versions[NEWEST].tensors, history=self.versions[FOLD_BASE].history, signer=self.signer,
        )  # fmt: skip
        for number in range(NEWEST + 1):
            for edge in scratch.edges(POLICY, number):
                name, payload, manifest = f"{edge.kind}-{number}", scratch.payload(edge), edge
                if number == NEWEST:
                    name = edge.kind
                    manifest = self.signer.sign(msgspec.structs.replace(edge, chunks=chunks_of(payload)))
                self.store.publish(manifest, payload)
                self.edges[name], self.payloads[name] = manifest, payload
        shutil.rmtree(self.folder / "scratch")

    def _make_replica(self, victim: str) -> Path:
        """A replica that holds a version and the one before it; it remembers the pointer that it followed."""
        folder = self.folder / f"replica-{victim}"
        with Replica(folder, self.store, POLICY) as replica:
            for version in (STANDS_AT[victim] - 1, STANDS_AT[victim]):
                replica.bring(version, RUN)
        (folder / "pointer.json").write_bytes(self.pointer_text(version=STANDS_AT[victim], epoch=STANDS_AT[victim]))
        return folder

    def _newest(self) -> dict[str, bytes]:
        """Per victim the history that it has when it came to the newest version."""
        histories = {STEP: self.versions[NEWEST].history, FOLD: History()}
        return {victim: history.to_bytes() for victim, history in histories.items()}


def parts_of(payload: bytes) -> list[bytes]:
    """A payload in a few chunks."""
    size = max(1, -(-len(payload) // _NUM_CHUNKS))
    return [payload[start : start + size] for start in range(0, len(payload), size)]


def chunks_of(payload: bytes) -> tuple[Chunk, ...]:
    """What a manifest says of `parts_of`."""
    return tuple(Chunk(blake3(part).hexdigest(), len(part)) for part in parts_of(payload))


def text_of(manifest: Manifest) -> bytes:
    """A manifest as stores have it."""
    return msgspec.json.format(msgspec.json.encode(manifest))


def drawn(chance: random.Random, make: Callable[[random.Random], bytes], is_same: Callable[[bytes], bool]) -> bytes:
    """Something made that is not the same as before."""
    return next(made for made in (make(chance) for _ in itertools.count()) if not is_same(made))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def _versions(seed: int) -> list[ForgedVersion]:
    draws, history = np.random.default_rng(seed), History()
    tensors, versions = _first(draws), []
    for number in range(NEWEST + 1):
        if number:
            encoded = encode(tensors, target := stepped(tensors, draws), history)
            history.advance(encoded.moves, encoded.target_root)
            tensors = target
        versions.append(ForgedVersion(tensors, root_of(tensors), history.copy()))
    return versions


def _first(draws: np.random.Generator) -> Tensors:
    def other(dtype: str, numpy_dtype: str, *shape: int) -> Tensor:
        values = draws.normal(0, 20, shape).astype(numpy_dtype)
        return Tensor(dtype, shape, values.reshape(-1).view(np.uint8))

    return {
        "matrix": random_bf16(draws, _MATRIX),
        "norm": random_bf16(draws, (64,)),
        "long": other("I8", "<i1", 2**18 + 5000),
        "eighth": other("F8_E4M3", "<i1", 64, 64),
        "single": other("F32", "<f4", 50, 70),
        "single_all": other("F32", "<f4", 30, 40),
        "double": other("F64", "<f8", 10, 10),
        "noise": other("F16", "<f2", 16, 32),
    }


def stepped(tensors: Mapping[str, Tensor], draws: np.random.Generator) -> Tensors:
    """The next version: every way of travelling occurs."""
    result = {}
    for name, tensor in tensors.items():
        size = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}.get(tensor.dtype, 1)
        words = tensor.data.copy().view(f"<u{size}")
        step = draws.choice(np.array([1, -1]), words.size).astype(f"<i{size}").view(words.dtype)
        if name == "matrix":
            sides = [draws.standard_normal(size) for size in _MATRIX]
            moves = np.outer(*sides).reshape(-1) * draws.uniform(0.5, 1.5, words.size)
            changed = np.abs(moves) > np.quantile(np.abs(moves), 1 - _MOVED)
            outwards = np.where(words >> 15, -1, 1)  # a bit pattern grows away from zero, below it too
            step = (np.sign(moves) * outwards).astype("<i2").view("<u2")
        elif name == "noise":
            changed, step = np.ones(words.size, bool), draws.integers(0, 2**16, words.size, dtype="<u2")
        else:
            changed = draws.random(words.size) < _SHARES[name]
        words[changed] += step[changed]
        result[name] = tensor._replace(data=words.view(np.uint8))
    return result
