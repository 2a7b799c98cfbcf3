"""Kinds of attacks from inside, on payloads: they are wrong, their hashes are right, and our own key signed them.

A publisher with a bug does the same. In: a world, and a random source. Out: edits of files in the store.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
import zstandard

from benchmarks.forgeries.kinds import Kind, Make, other_weights
from benchmarks.forgeries.signed import only_way
from benchmarks.forgeries.texts import ODD, flipped, inserted, leaves_of, other_value, truncated, zeroed
from benchmarks.forgeries.world import (
    NEWEST,
    STANDS_AT,
    Edits,
    World,
)
from weights.codec.container import DENSE, MAGIC, SPARSE
from weights.codec.delta import encode
from weights.codec.history import History

Tree = list[Any]
"""A payload's header as msgpack has it: layout, tables per dtype, and per tensor how it travels."""
_LAYOUT, _MODELS, _HEADS = range(3)
_WAY, _NUM_BYTES, _SCALE, _CHANGES, _WORDS, _FACTOR_BYTES, _LEVELS = range(7)
_BOMB_BYTES = 2**26
_NUMBERS = (
    -(2**63), -(2**31), -97, -96, -2, -1, 0, 1, 2, 3, 4, 7, 8, 96, 97, 127, 128, 255, 256, 2**12, 2**16, 2**18, 2**31, 2**32 - 1,
    2**32, 2**62, 2**63 - 1, 2**64 - 1,
)  # fmt: skip


def payload_kinds() -> list[Kind]:
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
        "lengths in front": _wrong_front,
        "bombs": _bomb,
    }
    trees: dict[str, Callable[[random.Random, Tree, World], None]] = {
        "header: any value": _any_value,
        "header: tables": _spoil_tables,
        "header: heads": _spoil_heads,
        "header: numbers that still add up": _move_numbers,
        "header: layout": _spoil_layout,
        "header: entries": _spoil_entries,
    }
    payloads |= {name: partial(_respoken, spoil=spoil) for name, spoil in trees.items()}
    payloads |= {"bodies": _spoil_body, "factors": _spoil_factors}
    # A bit may be one that nobody reads, or a table's entry one that nobody uses: then the weights come out right.
    return [
        Kind(f"payload: {name}", partial(only_way, make=make), may_be_harmless=True) for name, make in payloads.items()
    ]


def _other_target(world: World, chance: random.Random, victim: str) -> Edits:
    base = world.versions[STANDS_AT[victim]]
    return world.sealed(victim, encode(base.tensors, other_weights(world, chance), base.history).payload)


def _coded_on_another_base(world: World, chance: random.Random, victim: str) -> Edits:
    base = world.versions[chance.choice([number for number in range(NEWEST) if number != STANDS_AT[victim]])]
    history = world.versions[STANDS_AT[victim]].history
    known = chance.choice((base.tensors, base.tensors, None))
    return world.sealed(victim, encode(known, world.versions[NEWEST].tensors, chance.choice((history, None))).payload)


def _coded_with_another_history(world: World, chance: random.Random, victim: str) -> Edits:
    base = world.versions[STANDS_AT[victim]]
    histories = [version.history for version in world.versions if version.history.digest != base.history.digest]
    history = chance.choice([*histories, History()])
    return world.sealed(victim, encode(base.tensors, world.versions[NEWEST].tensors, history).payload)


def _other_payload(world: World, chance: random.Random, victim: str) -> Edits:
    names = [name for name in world.payloads if name != victim]
    return world.sealed(
        victim, chance.choice((world.payloads[chance.choice(names)], b"", MAGIC, b"MRD1" + world.payloads[victim][4:]))
    )


def _spoilt(world: World, chance: random.Random, victim: str, spoil: Callable[[random.Random, bytes], bytes]) -> Edits:
    return world.sealed(victim, spoil(chance, world.payloads[victim]))


def _wrong_front(world: World, chance: random.Random, victim: str) -> Edits:
    payload = world.payloads[victim]
    length = int.from_bytes(payload[4:8], "little")
    lengths = (0, 1, length - 1, length + 1, len(payload) - 8, len(payload) - 7, 2**31, 2**32 - 1)
    return world.sealed(victim, payload[:4] + chance.choice(lengths).to_bytes(4, "little") + payload[8:])


def _bomb(world: World, chance: random.Random, victim: str) -> Edits:
    """Little that says, or is, very much."""
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
            _with_factors(tree, bodies, lambda _: _zeros(_BOMB_BYTES))
    return world.sealed(victim, _joined(tree, bodies))


@cache
def _zeros(size: int) -> bytes:
    return zstandard.compress(bytes(size))


def _respoken(
    world: World, chance: random.Random, victim: str, spoil: Callable[[random.Random, Tree, World], None]
) -> Edits:
    tree, bodies = _parts(world.payloads[victim])
    spoil(chance, tree, world)
    return world.sealed(victim, _joined(tree, bodies))


def _any_value(chance: random.Random, tree: Tree, _: World) -> None:
    holder, key = chance.choice(leaves_of(tree))
    holder[key] = chance.choice((*_NUMBERS, *(odd for odd in ODD if not isinstance(odd, dict)), b"", b"\xff" * 40))


def _spoil_tables(chance: random.Random, tree: Tree, _: World) -> None:
    model = tree[_MODELS][chance.choice(sorted(tree[_MODELS]))]
    part = chance.choice([part for part in range(len(model)) if model[part]])
    if isinstance(model[part], bytes):
        model[part] = other_value(chance, model[part])
        return
    holder, key = chance.choice(leaves_of(model[part]))
    holder[key] = chance.choice((other_value(chance, holder[key]), chance.choice(_NUMBERS)))
    if chance.random() < 0.2:  # noqa: PLR2004 now and then
        model[part].insert(chance.randrange(len(model[part])), chance.choice(model[part]))


def _spoil_heads(chance: random.Random, tree: Tree, _: World) -> None:
    head = chance.choice(tree[_HEADS])
    field = chance.choice([field for field in range(len(head)) if field != _NUM_BYTES])
    if not isinstance(head[field], list):
        head[field] = chance.choice((head[field] + chance.choice((-1, 1)), chance.choice(_NUMBERS)))
    elif not head[field] or chance.random() < 0.3:  # noqa: PLR2004 lists of another length
        head[field] = [chance.choice(_NUMBERS) for _ in range(chance.randrange(10))]
    else:
        place = chance.randrange(len(head[field]))
        head[field][place] = chance.choice((head[field][place] + chance.choice((-1, 1)), chance.choice(_NUMBERS)))


def _move_numbers(chance: random.Random, tree: Tree, _: World) -> None:
    """From one place to another, so that sums stay what they are."""
    sparse = [head for head in tree[_HEADS] if head[_WAY] == SPARSE]
    long = next(head for head in sparse if len(head[_CHANGES]) > 1)
    factored = next((head for head in sparse if head[_FACTOR_BYTES]), long)
    amount = chance.choice((1, -1, 2, chance.randrange(-40, 40) or 3))
    match chance.randrange(5):
        case 0:
            one, other = chance.sample(tree[_HEADS], 2)
            one[_NUM_BYTES] += amount
            other[_NUM_BYTES] -= amount
        case 1 | 2:
            field = chance.choice((_CHANGES, _WORDS))
            long[field][0] += amount
            long[field][1] -= amount
        case 3:
            factored[_FACTOR_BYTES] += 4 * amount
            factored[_WORDS][0] -= amount
        case _:
            head = chance.choice(sparse)
            head[_SCALE] = chance.randrange(-96, 97)
            head[_LEVELS] = [chance.randrange(-96, 97) - head[_SCALE] for _ in head[_LEVELS]]


def _spoil_layout(chance: random.Random, tree: Tree, world: World) -> None:
    """The payload says itself which tensors there are."""
    tensors = world.versions[NEWEST].tensors
    layout = [[name, tensors[name].dtype, list(tensors[name].shape)] for name in sorted(tensors)]
    tree[_LAYOUT] = layout
    entry = chance.choice(layout)
    match chance.randrange(9):
        case 0:
            entry[0] = chance.choice(("", "../x", "__metadata__", "\0", layout[0][0], "zz", "a" * 70_000))
        case 1:
            entry[1] = chance.choice(("", "F64", "I8", "BF16", "F4", "x" * 1000))
        case 2:
            entry[2] = chance.choice(
                ([], [0], [-1], [2**62], [2**63, 2**63], [1] * 64, [1] * 65, [0, 2**63], [3, 5], entry[2][::-1])
            )
        case 3:
            chance.shuffle(layout)
        case 4:
            layout.append(list(entry))
        case 5:
            layout.remove(entry)
        case 6:
            tree[_LAYOUT], tree[_HEADS] = [], []
        case 7:
            place = layout.index(entry)
            del layout[place], tree[_HEADS][place]
        case _:
            layout.append(["zz", entry[1], entry[2]])
            tree[_HEADS].append(chance.choice(([0], [1, 0, 0, [0], [0]], [2, 0, 0, [], [0, 1]], [3])))


def _spoil_entries(chance: random.Random, tree: Tree, _: World) -> None:
    """Whole parts of the header are missing, doubled or exchanged."""
    heads, models = tree[_HEADS], tree[_MODELS]
    one, other = chance.sample(range(len(heads)), 2)
    dtypes = sorted(models)
    match chance.randrange(7):
        case 0:
            del heads[one]
        case 1:
            heads.insert(one, list(heads[other]))
        case 2:
            heads[one], heads[other] = heads[other], heads[one]
        case 3:
            del models[chance.choice(dtypes)]
        case 4:
            models["Q7"] = models[dtypes[0]]
        case 5:
            models[dtypes[0]], models[dtypes[-1]] = models[dtypes[-1]], models[dtypes[0]]
        case _:
            del tree[chance.randrange(len(tree))]


def _spoil_body(world: World, chance: random.Random, victim: str) -> Edits:
    """A tensor's bytes are others, and the header knows."""
    tree, bodies = _parts(world.payloads[victim])
    number = chance.choice([number for number, body in enumerate(bodies) if body])
    body = bodies[number]
    spoils = (
        flipped,
        zeroed,
        truncated,
        inserted,
        lambda chance, body: chance.randbytes(len(body)),
        _words_exchanged,
        lambda *_: b"",
    )
    bodies[number] = chance.choice(spoils)(chance, body)
    head = tree[_HEADS][number]
    if head[_WAY] == SPARSE and (more := len(bodies[number]) - len(body)) % 4 == 0 and chance.random() < 0.7:  # noqa: PLR2004 mostly
        head[_WORDS][-1] += more // 4
    head[_NUM_BYTES] = len(bodies[number])
    return world.sealed(victim, _joined(tree, bodies))


def _words_exchanged(chance: random.Random, body: bytes) -> bytes:
    words = [body[start : start + 4] for start in range(0, len(body), 4)]
    one, other = chance.randrange(len(words)), chance.randrange(len(words))
    words[one], words[other] = words[other], words[one]
    return b"".join(words)


def _spoil_factors(world: World, chance: random.Random, victim: str) -> Edits:
    tree, bodies = _parts(world.payloads[victim])

    def other(content: bytes) -> bytes:
        codes = zstandard.ZstdDecompressor().decompress(content)
        plain = chance.choice(
            (flipped(chance, codes), codes[:-1], codes + b"\0", bytes(len(codes)), chance.randbytes(len(codes)), b"")
        )
        return chance.choice((zstandard.compress(plain), plain, flipped(chance, content), truncated(chance, content)))

    _with_factors(tree, bodies, other)
    return world.sealed(victim, _joined(tree, bodies))


def _with_factors(tree: Tree, bodies: list[bytes], change: Callable[[bytes], bytes]) -> None:
    number = next(
        number for number, head in enumerate(tree[_HEADS]) if len(head) > _FACTOR_BYTES and head[_FACTOR_BYTES]
    )
    head, body = tree[_HEADS][number], bodies[number]
    factors = change(body[: head[_FACTOR_BYTES]])
    bodies[number] = factors + body[head[_FACTOR_BYTES] :]
    head[_FACTOR_BYTES], head[_NUM_BYTES] = len(factors), len(bodies[number])


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
