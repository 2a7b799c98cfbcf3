"""Kinds of attacks from outside: on chunks, manifests and pointers in the store, and on a replica's own files.

In: a world, and a random source. Out: edits of files. The attacker has no trusted key, unless the kind names one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.adversary.forgeries.texts import TEXTS, Spoil, flipped, inserted, truncated, zeroed
from tests.adversary.forgeries.world import (
    FOLD,
    NEWEST,
    POLICY,
    STANDS_AT,
    STEP,
    Edits,
    ForgedStore,
    chunks_of,
    drawn,
    text_of,
)
from weights.codec.delta import encode
from weights.tensors import Tensors
from weights.versions.layout import edge_name
from weights.versions.manifest import Manifest
from weights.versions.pointer import Pointer
from weights.versions.signing import Signer

Make = Callable[[ForgedStore, random.Random, str], Edits]
OUTSIDE = Path(__file__)
"""A file that no store should hand out."""


class ForgedKind(NamedTuple):
    """A kind of attack."""

    name: str
    make: Make
    """World, random source and victim to edits; the edge that is attacked is named as the victim."""
    victims: tuple[str, ...] = (STEP, FOLD)
    may_be_harmless: bool = False
    """The victim may reach exactly the right weights: by another edge, or because nothing relevant was changed."""
    tells_run: bool = False
    """Only the run is wrong. Pointers name the run, so replicas notice; the engine's staging gets only a version number."""
    is_on_disk: bool = False
    """The files are the victim's own."""


def store_kinds() -> list[ForgedKind]:
    """On what lies in the store."""
    return [*_chunk_kinds(), *_text_kinds(), *_forged_kinds(), *_moved_kinds(), *_pointer_kinds()]


def disk_kinds() -> list[ForgedKind]:
    """On what lies on the disk of a replica."""
    files: dict[str, dict[str, Spoil]] = {
        "model.safetensors": {"bits flipped": flipped, "truncated": truncated, "inserted": inserted, "zeroed": zeroed},
        "history.bin": {"bits flipped": flipped, "truncated": truncated, "inserted": inserted, "zeroed": zeroed},
        "held.json": TEXTS,
        "current": TEXTS,
        "pointer.json": TEXTS,
    }
    kinds: list[tuple[str, Make]] = [
        (f"disk: {file}, {how}", partial(_spoil_own, file=file, spoil=spoil))
        for file, spoils in files.items()
        for how, spoil in spoils.items()
    ]
    kinds += [
        ("disk: model.safetensors, header changed", partial(_spoil_own, file="model.safetensors", spoil=_model_header)),
        ("disk: model.safetensors, of another version", _exchange_own),
        ("disk: history.bin, header changed", partial(_spoil_own, file="history.bin", spoil=_history_header)),
        ("disk: chunks half fetched, or wrong", _poison_parts),
    ]
    return [ForgedKind(name, make, may_be_harmless=True, is_on_disk=True) for name, make in kinds]


def _chunk_kinds() -> list[ForgedKind]:
    spoils: dict[str, Spoil] = {
        "bits flipped": flipped, "truncated": truncated, "bytes put in": inserted, "zeroed": zeroed,
        "empty": lambda _, __: b"", "its halves exchanged": lambda _, whole: whole[len(whole) // 2 :] + whole[: len(whole) // 2],
    }  # fmt: skip
    kinds = [ForgedKind(f"chunk: {how}", partial(_spoil_chunk, spoil=spoil)) for how, spoil in spoils.items()]
    return [
        *kinds,
        ForgedKind("chunk: bytes behind its end", partial(_spoil_chunk, spoil=_extended), may_be_harmless=True),
        ForgedKind("chunk: exchanged with another", _exchange_chunks),
        ForgedKind("chunk: of another version", _old_chunk),
        ForgedKind("chunk: a link out of the folder", _linked_chunk, may_be_harmless=True),
    ]


def _spoil_chunk(world: ForgedStore, chance: random.Random, victim: str, spoil: Spoil) -> Edits:
    name = chance.choice(world.chunk_files(victim))
    genuine = world.files[name]
    return {name: drawn(chance, lambda chance: spoil(chance, genuine), genuine.__eq__)}


def _extended(chance: random.Random, content: bytes) -> bytes:
    return content + chance.randbytes(chance.choice((1, 100, 2**16)))


def _exchange_chunks(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    one, other = chance.sample(world.chunk_files(victim), 2)
    return {one: world.files[other], other: world.files[one]}


def _old_chunk(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    name = chance.choice(world.chunk_files(victim))
    old = world.files[chance.choice(world.chunk_files(chance.choice(("full-0", "step-1", "step-2", "step-3"))))]
    return {name: chance.choice((old, old[: len(world.files[name])]))}


def _linked_chunk(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    name = chance.choice(world.chunk_files(victim))
    pipe = world.folder / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    loop, gone = world.folder / name, world.folder / "gone"
    return {name: chance.choice((OUTSIDE, OUTSIDE.parent, Path("/dev/zero"), Path("/dev/null"), pipe, loop, gone))}


def _text_kinds() -> list[ForgedKind]:
    return [
        ForgedKind(f"manifest: {how}", partial(_spoil_manifest, spoil=spoil), may_be_harmless=True)
        for how, spoil in TEXTS.items()
    ]


def _spoil_manifest(world: ForgedStore, chance: random.Random, victim: str, spoil: Spoil) -> Edits:
    name, genuine = world.edge_file(victim), world.edges[victim]
    text = world.files[name]
    return {name: drawn(chance, lambda chance: spoil(chance, text), lambda made: _reads_as(made, genuine))}


def _reads_as(text: bytes, genuine: Manifest | Pointer) -> bool:
    try:
        return msgspec.json.decode(text, type=type(genuine)) == genuine
    except (ValueError, RecursionError):
        return False


def _forged_kinds() -> list[ForgedKind]:
    signers: dict[str, SignerOf] = {
        "a stranger": lambda world: world.stranger,
        "a retired key": lambda world: world.retired,
        "a stranger in our name": _Impostor,
        "nobody": lambda _: None,
    }
    kinds = []
    for who, signer in signers.items():
        kinds.append(
            ForgedKind(
                f"manifest: as it is, signed by {who}", partial(_resigned, signer_of=signer), may_be_harmless=True
            )
        )
        kinds.append(ForgedKind(f"manifest: of other weights, signed by {who}", partial(_usurped, signer_of=signer)))
    return [*kinds, ForgedKind("manifest: signature or key of another", _borrowed_signature, may_be_harmless=True)]


class _Impostor(Signer):
    """Signs with its own key and names another's."""

    def __init__(self, world: ForgedStore) -> None:
        self._other = world.stranger
        self.key_id = world.signer.key_id

    def sign_bytes(self, message: bytes) -> str:
        return self._other.sign_bytes(message)


SignerOf = Callable[[ForgedStore], Signer | None]


def _signed(signer: Signer | None, manifest: Manifest) -> bytes:
    return text_of(signer.sign(manifest) if signer else msgspec.structs.replace(manifest, key=None, signature=None))


def _resigned(world: ForgedStore, chance: random.Random, victim: str, signer_of: SignerOf) -> Edits:
    signer, genuine = signer_of(world), world.edges[victim]
    several: tuple[dict[str, Any], ...] = ({}, {"created_at": 1.0}, {"step": 7}, {"num_samples": 2**40})
    return {world.edge_file(victim): _signed(signer, msgspec.structs.replace(genuine, **chance.choice(several)))}


def _usurped(world: ForgedStore, chance: random.Random, victim: str, signer_of: SignerOf) -> Edits:
    """A whole version by an attacker, right in everything but the signature."""
    base = world.versions[STANDS_AT[victim]]
    is_full = chance.random() < 0.5
    encoded = encode(None if is_full else base.tensors, other_weights(world, chance), None if is_full else base.history)
    about = msgspec.structs.replace(
        world.edges[victim], target_root=encoded.target_root, chunks=chunks_of(encoded.payload), history_after=None
    )
    if is_full:
        about = msgspec.structs.replace(about, parent=None, base_version=None, base_root=None, history=None)
    elif victim == FOLD:  # a version needs a primary edge
        about = msgspec.structs.replace(about, parent=STANDS_AT[FOLD])
    place = str(Path(world.edge_file(STEP)).with_name(edge_name(about)))
    edits = world.sealed(victim, encoded.payload) | {world.edge_file(edge): None for edge in (STEP, FOLD)}
    return edits | {place: _signed(signer_of(world), about)}


def _borrowed_signature(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    genuine, other = world.edges[victim], world.edges[chance.choice(("step-1", "step-2", "step-3", "full-0"))]
    changes: tuple[dict[str, Any], ...] = (
        {"signature": other.signature}, {"key": world.stranger.key_id}, {"key": world.retired.key_id}, {"key": "../trusted/x"},
        {"key": ""}, {"key": None}, {"signature": None}, {"signature": ""}, {"signature": (genuine.signature or "").upper()},
        {"signature": "0" * 128}, {"signature": f" {genuine.signature}"}, {"signature": f"{genuine.signature}00"},
        {"signature": world.stranger.sign_bytes(b"")},
    )  # fmt: skip
    return {world.edge_file(victim): text_of(msgspec.structs.replace(genuine, **chance.choice(changes)))}


def other_weights(world: ForgedStore, chance: random.Random) -> Tensors:
    """The attacker's weights: a few bits differ from the newest version."""
    tensors = dict(world.versions[NEWEST].tensors)
    for name in chance.sample(sorted(tensors), chance.choice((1, 2))):
        data = tensors[name].data.copy()
        data[chance.randrange(data.size)] ^= 1 << chance.randrange(8)
        tensors[name] = tensors[name]._replace(data=data)
    return tensors


def _moved_kinds() -> list[ForgedKind]:
    """Genuine manifests where they do not belong."""
    return [
        ForgedKind("replay: an older step under the newer number", _older_edge, may_be_harmless=True),
        ForgedKind("replay: an edge of another kind", _other_kind, may_be_harmless=True),
        ForgedKind(
            "replay: of another policy",
            lambda world, _, victim: world.sealed(victim, policy="another"),
            may_be_harmless=True,
        ),
        ForgedKind("replay: of another run", _other_run, tells_run=True),
        ForgedKind(
            "replay: a pointer as a manifest",
            lambda world, _, victim: {world.edge_file(victim): world.pointer_text()},
            may_be_harmless=True,
        ),
    ]


def _older_edge(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    old = world.files[world.edge_file(chance.choice(("step-1", "step-2", "step-3", "full-0")))]
    return {world.edge_file(victim): old}


def _other_kind(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    full = str(Path(world.edge_file(STEP)).with_name("full.json"))
    place = chance.choice(
        [name for name in (world.edge_file(STEP), world.edge_file(FOLD), full) if name != world.edge_file(victim)]
    )
    return {place: world.files[world.edge_file(victim)]}


def _other_run(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    if victim == FOLD or chance.random() < 0.5:
        return world.sealed(victim, run="another")
    base = world.versions[STANDS_AT[STEP]]
    encoded = encode(base.tensors, other_weights(world, chance), base.history)
    edits = world.sealed(STEP, encoded.payload, run="another", target_root=encoded.target_root)
    return edits | {world.edge_file(FOLD): None}


def _pointer_kinds() -> list[ForgedKind]:
    kinds = [ForgedKind(f"pointer: {how}", partial(_spoil_pointer, spoil=spoil)) for how, spoil in TEXTS.items()]
    return [
        *kinds,
        ForgedKind("pointer: an older one put back", _older_pointer),
        ForgedKind("pointer: another one of the epoch that was seen", _same_epoch),
        ForgedKind("pointer: of another arm, policy, run or schema", _foreign_pointer),
        ForgedKind("pointer: to a version that does not exist", _pointer_nowhere),
        ForgedKind("pointer: signed by somebody else", _forged_pointer),
        ForgedKind("pointer: a manifest in its place", lambda world, _, victim: {world.pointer_file: world.files[world.edge_file(victim)]}),
    ]  # fmt: skip


def _spoil_pointer(world: ForgedStore, chance: random.Random, victim: str, spoil: Spoil) -> Edits:  # noqa: ARG001 as every kind
    text = world.files[world.pointer_file]
    genuine = msgspec.json.decode(text, type=Pointer)
    made = drawn(chance, lambda chance: spoil(chance, text), lambda made: _reads_as(made, genuine))
    return {world.pointer_file: made}


def _older_pointer(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    epoch = chance.randrange(STANDS_AT[victim])
    return {world.pointer_file: world.pointer_text(version=chance.choice((epoch, NEWEST)), epoch=epoch)}


def _same_epoch(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    epoch = STANDS_AT[victim]
    several: tuple[dict[str, Any], ...] = ({"version": NEWEST}, {"version": 0}, {"version": epoch, "run": "another"})
    return {world.pointer_file: world.pointer_text(epoch=epoch, **chance.choice(several))}


def _foreign_pointer(world: ForgedStore, chance: random.Random, victim: str) -> Edits:  # noqa: ARG001 as every kind
    changes: tuple[dict[str, Any], ...] = (
        {"arm": "canary"},
        {"policy": "another"},
        {"run": "another"},
        {"schema": 2},
        {"schema": 0},
    )
    return {world.pointer_file: world.pointer_text(**chance.choice(changes))}


def _pointer_nowhere(world: ForgedStore, chance: random.Random, victim: str) -> Edits:  # noqa: ARG001 as every kind
    return {
        world.pointer_file: world.pointer_text(version=chance.choice((NEWEST + 1, -1, 10**6, 2**63, -(2**70), 10**300)))
    }


def _forged_pointer(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    text = world.files[world.pointer_file]
    genuine = msgspec.json.decode(text, type=Pointer)
    match chance.randrange(4):
        case 0:
            made = world.pointer_text(world.stranger, version=chance.randrange(NEWEST + 1), epoch=chance.randrange(9))
        case 1:
            made = world.pointer_text(world.stranger, key=world.signer.key_id)
        case 2:
            made = world.pointer_text(world.retired)
        case _:
            signature = chance.choice((None, "", world.edges[victim].signature))
            made = msgspec.json.encode(msgspec.structs.replace(genuine, signature=signature))
    return {world.pointer_file: made}


def _own(world: ForgedStore, chance: random.Random, victim: str, file: str) -> tuple[str, bytes]:
    files = world.own_files(victim)
    name = chance.choice(sorted(name for name in files if Path(name).name == file))
    return name, files[name]


def _spoil_own(world: ForgedStore, chance: random.Random, victim: str, file: str, spoil: Spoil) -> Edits:
    name, genuine = _own(world, chance, victim, file)
    return {f"replica/{name}": drawn(chance, lambda chance: spoil(chance, genuine), genuine.__eq__)}


def _exchange_own(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    name, genuine = _own(world, chance, victim, "model.safetensors")
    others = [content for other, content in world.own_files(victim).items() if Path(other).name == Path(name).name]
    return {f"replica/{name}": next(content for content in others if content != genuine)}


def _model_header(chance: random.Random, content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = chance.choice(list(TEXTS.values()))(chance, content[8 : 8 + size])
    length = chance.choice((len(header), len(header), 0, 2**63, 2**64 - 8, size))
    return length.to_bytes(8, "little") + header + content[8 + size :]


def _history_header(chance: random.Random, content: bytes) -> bytes:
    """The header of the compressed frame claims a huge size, or is random."""
    size = chance.choice((2**20, 2**31, 2**40, 2**62)).to_bytes(8, "little")
    return chance.choice((content[:4] + b"\xe0" + size + content[9:], content[:4] + chance.randbytes(9) + content[13:]))


def _poison_parts(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    edits: Edits = {}
    for chunk in world.edges[victim].chunks:
        genuine = world.files[f"store/{POLICY}/chunks/{chunk.blake3}"]
        spoil = chance.choice((flipped, truncated, inserted, zeroed, _extended))
        suffix = chance.choice(("", ".part"))
        edits[f"replica/chunks/{chunk.blake3}{suffix}"] = spoil(chance, genuine)
    return edits
