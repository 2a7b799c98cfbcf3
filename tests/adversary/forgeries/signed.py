"""Kinds of attacks from inside, on manifests: they are wrong, and signed by our own key.

A publisher with a bug does the same. In: a world, and a random source. Out: edits of files in the store.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from blake3 import blake3

from tests.adversary.forgeries.kinds import ForgedKind, Make
from tests.adversary.forgeries.world import FOLD, FOLD_BASE, NEWEST, STEP, Edits, ForgedStore, chunks_of
from weights.versions.manifest import CHUNK_BYTES, NO_HISTORY, Chunk


def signed_kinds() -> list[ForgedKind]:
    """On manifests that our own key vouches for."""
    manifests: dict[str, Make] = {
        "schema or codec of another time": _other_format,
        "the wrong base": _wrong_base,
        "another history": _other_history,
        "another target root": _other_root,
        "a root that is a path": _root_is_a_path,
        "another place in the lineage": _other_place,
        "chunks that do not add up": _wrong_chunks,
    }
    return [
        ForgedKind(f"signed: {name}", partial(only_way, make=make), victims=(STEP,)) for name, make in manifests.items()
    ]


def only_way(world: ForgedStore, chance: random.Random, victim: str, make: Make) -> Edits:
    """Also remove the other edge to the newest version, so that the victim cannot avoid the attack."""
    other = world.edge_file(FOLD if victim == STEP else "step-3")
    return {other: None} | make(world, chance, victim)


def _other_format(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    changes: tuple[dict[str, Any], ...] = (
        {"schema": 1}, {"schema": 0}, {"schema": -1}, {"schema": 4}, {"schema": 2**63}, {"codec": "context-rans/0"}, {"codec": "raw"},
        {"codec": "context-rans/2"}, {"codec": ""}, {"codec": "CONTEXT-RANS/1"},
    )  # fmt: skip
    return world.sealed(victim, **chance.choice(changes))


def _wrong_base(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    version = chance.randrange(NEWEST - 1)
    root, noise = world.versions[version].root, blake3(chance.randbytes(8)).hexdigest()
    if chance.random() < 0.5:
        # The number is right, and the weights behind it are not.
        return world.sealed(victim, base_root=chance.choice((root, noise, world.versions[NEWEST].root, "")))
    # The payload is one for version 3, and says that it is one for an older version, under one root or another.
    base_root = chance.choice((root, noise, world.versions[NEWEST - 1].root))
    return world.sealed(victim, parent=version, base_version=version, base_root=base_root)


def _other_history(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    digests = [version.history.digest for version in world.versions if version.history.digest != NO_HISTORY]
    others = [None, NO_HISTORY, "", "x" * 32, blake3(chance.randbytes(8)).hexdigest()[:32]]
    others += [digest for digest in digests if digest != world.edges[victim].history]
    return world.sealed(victim, history=chance.choice(others))


def _other_root(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    roots = [version.root for version in world.versions[:NEWEST]]
    root = chance.choice(
        [*roots, blake3(chance.randbytes(8)).hexdigest(), "", world.versions[NEWEST].root.upper(), "../../x"]
    )
    return world.sealed(victim, target_root=root)


def _root_is_a_path(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    """A replica names a folder by the beginning of the root, and removes it if the version is refused."""
    root = chance.choice(
        (
            "../../store",
            "x/../../..",
            "x/../../../a",
            "/../../store",
            "\0",
            "a/b",
            "a" * 5000,
            world.versions[NEWEST].root[:12],
        )
    )
    changes: dict[str, Any] = {chance.choice(("target_root", "base_root")): root}
    return world.sealed(victim, **changes)


def _other_place(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    changes: tuple[dict[str, Any], ...] = (
        {"version": NEWEST + 1}, {"version": NEWEST - 1}, {"version": -NEWEST}, {"version": 2**70}, {"parent": FOLD_BASE}, {"parent": None},
        {"parent": NEWEST, "base_version": NEWEST}, {"parent": 2**70, "base_version": 2**70}, {"parent": -1, "base_version": -1},
        {"base_version": None}, {"base_root": None}, {"base_version": NEWEST}, {"base_version": 0}, {"policy": "../attacked"},
    )  # fmt: skip
    return world.sealed(victim, **chance.choice(changes))


def _wrong_chunks(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    payload = world.payloads[victim]
    one, two, three = chunks_of(payload)
    size = chance.choice((one.num_bytes - 1, one.num_bytes + 1, 0, -1, -one.num_bytes, CHUNK_BYTES + 1, 2**62, 2**80))
    digest = chance.choice(
        ("", "../../../keys/signing.key", one.blake3.upper(), one.blake3[:-1], "0" * 64, three.blake3, "/etc/passwd")
    )
    lists: tuple[tuple[Chunk, ...], ...] = (
        (), (one,), (one, two), (two, three), (three, two, one), (two, one, three), (one, one, two, three), (one, two, three, three),
        (Chunk(one.blake3, size), two, three), (Chunk(digest, one.num_bytes), two, three),
        (one, Chunk(one.blake3, one.num_bytes - 1), two, three), (one, two, three) * 300,
        (*(Chunk(one.blake3, number) for number in range(1, 40)), one, two, three),
    )  # fmt: skip
    return world.sealed(victim, chunks=chance.choice(lists))
