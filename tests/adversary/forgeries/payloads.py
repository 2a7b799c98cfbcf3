"""Kinds of attacks from inside, on payloads: the payload is wrong, its hashes are right, and our own key signed it.

A publisher with a bug does the same. In: a world, and a random source. Out: edits of files in the store. The decoder alone, with
every field of a header out of its range, is tested in `tests/unit/weights/test_codec_damage.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial

import msgspec
import zstandard

from tests.adversary.forgeries.kinds import ForgedKind, Make, other_weights
from tests.adversary.forgeries.signed import only_way
from tests.adversary.forgeries.texts import flipped, inserted, truncated, zeroed
from tests.adversary.forgeries.trees import TREES, SpoilTree, Tree
from tests.adversary.forgeries.world import NEWEST, STANDS_AT, Edits, ForgedStore
from weights.codec.container import DENSE, MAGIC, SPARSE
from weights.codec.delta import encode
from weights.codec.history import History

_LAYOUT, _MODELS, _HEADS = range(3)
"""Parts of a payload's header: layout, tables per dtype, and per tensor how it is coded."""
_WAY, _NUM_BYTES, _WORDS, _FACTOR_BYTES = 0, 1, 4, 5
"""Fields of a head."""
_BOMB_BYTES = 2**26


def payload_kinds() -> list[ForgedKind]:
    """On payloads that our own key vouches for."""
    payloads: dict[str, Make] = {
        "of other weights": _other_target,
        "coded on another base": _coded_on_another_base,
        "coded with another history": _coded_with_another_history,
        "of another version": _other_payload,
        "bits flipped": partial(_spoilt, spoil=flipped),
        "truncated": partial(_spoilt, spoil=truncated),
        "bytes put in": partial(_spoilt, spoil=inserted),
        "zeroed": partial(_spoilt, spoil=zeroed),
        "bytes behind its end": partial(_spoilt, spoil=lambda chance, content: content + chance.randbytes(4)),
        "bombs": _bomb,
    }
    payloads |= {f"header: {how}": partial(_with_header, spoil=spoil) for how, spoil in TREES.items()}
    payloads |= {"header: layout and heads": _with_layout, "bodies": _spoil_body}
    # A changed bit may never be read, and a changed entry of a table never be used: then the weights are right.
    return [
        ForgedKind(f"payload: {name}", partial(only_way, make=make), may_be_harmless=True)
        for name, make in payloads.items()
    ]


def _other_target(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    base = world.versions[STANDS_AT[victim]]
    return world.sealed(victim, encode(base.tensors, other_weights(world, chance), base.history).payload)


def _coded_on_another_base(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    base = world.versions[chance.choice([number for number in range(NEWEST) if number != STANDS_AT[victim]])]
    history = world.versions[STANDS_AT[victim]].history
    known = chance.choice((base.tensors, base.tensors, None))
    return world.sealed(victim, encode(known, world.versions[NEWEST].tensors, chance.choice((history, None))).payload)


def _coded_with_another_history(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    base = world.versions[STANDS_AT[victim]]
    histories = [version.history for version in world.versions if version.history.digest != base.history.digest]
    history = chance.choice([*histories, History()])
    return world.sealed(victim, encode(base.tensors, world.versions[NEWEST].tensors, history).payload)


def _other_payload(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    names = [name for name in world.payloads if name != victim]
    return world.sealed(
        victim, chance.choice((world.payloads[chance.choice(names)], b"", MAGIC, b"MRD1" + world.payloads[victim][4:]))
    )


def _spoilt(
    world: ForgedStore, chance: random.Random, victim: str, spoil: Callable[[random.Random, bytes], bytes]
) -> Edits:
    return world.sealed(victim, spoil(chance, world.payloads[victim]))


def _bomb(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    """A small payload that claims, or unpacks to, a huge size."""
    tree, bodies = _parts(world.payloads[victim])
    match chance.randrange(5):
        case 0:
            return world.sealed(victim, _front(_zeros(_BOMB_BYTES)) + b"".join(bodies))
        case 1:
            heads = msgspec.msgpack.encode(chance.choice(([None, {}], None, {}))) + chance.choice(
                (b"\xdd", b"\xdf", b"\xc6", b"\xdb")
            )
            return world.sealed(victim, _front(zstandard.compress(heads + b"\xff\xff\xff\xff" + bytes(100))))
        case 2:
            deep = b"\x91" * chance.choice((500, 5000, 100_000))
            return world.sealed(victim, _front(zstandard.compress(b"\x94\xc0\x80\x90" + deep + b"\x90")))
        case 3:
            number = next(number for number, head in enumerate(tree[_HEADS]) if head[_WAY] == DENSE)
            bodies[number] = _zeros(_BOMB_BYTES)
            tree[_HEADS][number][_NUM_BYTES] = len(bodies[number])
            tree[_HEADS][number][_WORDS] = chance.choice(([1200, 4], [2**24, 4], [2**62, 8], [2**40, 1]))
        case _:
            number = next(
                number for number, head in enumerate(tree[_HEADS]) if len(head) > _FACTOR_BYTES and head[_FACTOR_BYTES]
            )
            head = tree[_HEADS][number]
            bodies[number] = _zeros(_BOMB_BYTES) + bodies[number][head[_FACTOR_BYTES] :]
            head[_FACTOR_BYTES], head[_NUM_BYTES] = len(_zeros(_BOMB_BYTES)), len(bodies[number])
    return world.sealed(victim, _joined(tree, bodies))


@cache
def _zeros(size: int) -> bytes:
    return zstandard.compress(bytes(size))


def _with_header(world: ForgedStore, chance: random.Random, victim: str, spoil: SpoilTree) -> Edits:
    tree, bodies = _parts(world.payloads[victim])
    if chance.random() < 0.3:
        tree[_LAYOUT] = _layout_of(world)
    spoil(chance, tree)
    return world.sealed(victim, _joined(tree, bodies))


def _with_layout(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    """Tensors are missing, doubled, renamed or in another order, and the layout and the heads agree about it."""
    tree, bodies = _parts(world.payloads[victim])
    pairs = list(zip(_layout_of(world), tree[_HEADS], strict=True))
    one, other = chance.sample(range(len(pairs)), 2)
    match chance.randrange(4):
        case 0:
            pairs = pairs[:one] * chance.randrange(2)
        case 1:
            pairs.insert(one, pairs[other])
        case 2:
            pairs[one], pairs[other] = pairs[other], pairs[one]
        case _:
            name = chance.choice(("", "../x", "__metadata__", "\0", "zz", "a" * 70_000))
            pairs.append(([name, *pairs[one][0][1:]], chance.choice(([0], [2, 0, 0, [], [0, 1]], [3]))))
    tree[_LAYOUT], tree[_HEADS] = map(list, zip(*pairs, strict=True)) if pairs else ([], [])
    return world.sealed(victim, _joined(tree, bodies))


def _layout_of(world: ForgedStore) -> Tree:
    tensors = world.versions[NEWEST].tensors
    return [[name, tensors[name].dtype, list(tensors[name].shape)] for name in sorted(tensors)]


def _spoil_body(world: ForgedStore, chance: random.Random, victim: str) -> Edits:
    """A tensor's bytes differ, and the header has their new length."""
    tree, bodies = _parts(world.payloads[victim])
    number = chance.choice([number for number, body in enumerate(bodies) if body])
    body = bodies[number]
    spoils = (flipped, zeroed, truncated, inserted, lambda chance, body: chance.randbytes(len(body)), lambda *_: b"")
    bodies[number] = chance.choice(spoils)(chance, body)
    head = tree[_HEADS][number]
    if head[_WAY] == SPARSE and (more := len(bodies[number]) - len(body)) % 4 == 0 and chance.random() < 0.7:
        head[_WORDS][-1] += more // 4
    head[_NUM_BYTES] = len(bodies[number])
    return world.sealed(victim, _joined(tree, bodies))


def _parts(payload: bytes) -> tuple[Tree, list[bytes]]:
    end = 8 + int.from_bytes(payload[4:8], "little")
    tree = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(payload[8:end]))
    bodies = []
    for head in tree[_HEADS]:
        bodies.append(payload[end : end + head[_NUM_BYTES]])
        end += head[_NUM_BYTES]
    return tree, bodies


def _joined(tree: Tree, bodies: list[bytes]) -> bytes:
    return _front(zstandard.compress(msgspec.msgpack.encode(tree))) + b"".join(bodies)


def _front(header: bytes) -> bytes:
    return MAGIC + len(header).to_bytes(4, "little") + header
