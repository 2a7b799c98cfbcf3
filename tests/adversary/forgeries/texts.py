"""Damages bytes and JSON texts at random places, and field by field. Pure, apart from the random source."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

Spoil = Callable[[random.Random, bytes], bytes]
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 4, 5, 255, 256, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, -(2**63), 0.5, -0.0, 1e300,
    "", "0", "1", "../../x", "\0", "a" * 5000, "0" * 64, [], [0], [[]], {}, {"blake3": 1},
)  # fmt: skip
_DEPTHS = (50, 900, 1100, 20_000, 200_000)
_HUGE = (
    b"9" * 30,
    b"9" * 400,
    b"1" + b"0" * 6000,
    b"-" + b"9" * 25,
    b"1e309",
    b"-1e99999",
    b"0." + b"3" * 3000,
    b"1e-99999",
)
_NO_JSON = (
    b"", b" ", b"null", b"[]", b"{}", b"0", b'""', b"{", b"\xef\xbb\xbf{}", b"\0" * 100, b"\xff\xfe{\0}\0", b'{"schema":2}', b"NaN",
)  # fmt: skip
_CHARACTERS = b'0123456789abcdefg"\\{}[]:,.-+eEtfn \n\0\x1f\x7f\x80\xc3\xff'


def flipped(chance: random.Random, content: bytes) -> bytes:
    """Flip one to eight bits."""
    spoilt = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
    return bytes(spoilt)


def truncated(chance: random.Random, content: bytes) -> bytes:
    """Cut off the end, sometimes only one byte."""
    return content[: chance.choice((len(content) - 1, len(content) // 2, 1, chance.randrange(len(content))))]


def inserted(chance: random.Random, content: bytes) -> bytes:
    """Insert bytes somewhere before the last byte."""
    place = chance.randrange(len(content))
    return content[:place] + chance.randbytes(chance.choice((1, 4, 4096))) + content[place:]


def zeroed(chance: random.Random, content: bytes) -> bytes:
    """Set some bytes or all to 0."""
    place, size = chance.choice(((0, len(content)), (chance.randrange(len(content)), chance.randrange(1, 64))))
    return content[:place] + bytes(len(content[place : place + size])) + content[place + size :]


def characters(chance: random.Random, text: bytes) -> bytes:
    """A few characters are replaced, put in, left out or exchanged."""
    spoilt = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(len(spoilt))
        match chance.randrange(4):
            case 0:
                spoilt[place] = chance.choice(_CHARACTERS)
            case 1:
                spoilt.insert(place, chance.choice(_CHARACTERS))
            case 2:
                del spoilt[place]
            case _:
                other = chance.randrange(len(spoilt))
                spoilt[place], spoilt[other] = spoilt[other], spoilt[place]
    return bytes(spoilt)


def field_changed(chance: random.Random, text: bytes) -> bytes:
    """One field, at any depth, has another value of the same type."""
    tree = msgspec.json.decode(text)
    holder, key = _leaf(chance, tree)
    holder[key] = other_value(chance, holder[key])
    return msgspec.json.encode(tree)


def wrong_type(chance: random.Random, text: bytes) -> bytes:
    """One field has a value that nobody expects there."""
    tree = msgspec.json.decode(text)
    holder, key = _leaf(chance, tree)
    holder[key] = chance.choice(ODD)
    return msgspec.json.encode(tree)


def field_gone(chance: random.Random, text: bytes) -> bytes:
    """One field is missing."""
    tree = msgspec.json.decode(text)
    holder, key = _leaf(chance, tree)
    del holder[key]
    return msgspec.json.encode(tree)


def field_twice(chance: random.Random, text: bytes) -> bytes:
    """One field occurs twice, with different values."""
    tree = msgspec.json.decode(text)
    key = chance.choice(sorted(tree))
    value = chance.choice((other_value(chance, tree[key]), chance.choice(ODD)))
    again = msgspec.json.encode(key) + b":" + msgspec.json.encode(value)
    whole = msgspec.json.encode(tree)
    return chance.choice((b"{" + again + b"," + whole[1:], whole[:-1] + b"," + again + b"}"))


def huge_number(chance: random.Random, text: bytes) -> bytes:
    """One field is a number of many digits."""
    return _with_raw(chance, text, chance.choice(_HUGE))


def nested(chance: random.Random, text: bytes) -> bytes:
    """One field, known or not, is nested deeply."""
    depth = chance.choice(_DEPTHS)
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    raw = opening * depth + (b"1" + closing * depth if chance.random() < 0.8 else b"")
    if chance.random() < 0.5:
        return text.rstrip()[:-1] + b',"unknown":' + raw + b"}"
    return _with_raw(chance, text, raw)


def no_json(chance: random.Random, text: bytes) -> bytes:
    """Something else altogether."""
    return chance.choice((*_NO_JSON, chance.randbytes(len(text)), text * 2, text + b"}"))


TEXTS: dict[str, Spoil] = {
    "bits flipped": flipped,
    "characters changed": characters,
    "truncated": truncated,
    "field changed": field_changed,
    "field of a wrong type": wrong_type,
    "field missing": field_gone,
    "field twice": field_twice,
    "huge number": huge_number,
    "nested deeply": nested,
    "no such text": no_json,
}


def other_value(chance: random.Random, value: Any) -> Any:
    """A value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return chance.choice((value + 1, value - 1, -value - 1, value * 2 + 1, chance.randrange(2**16)))
        case float():
            return chance.choice((value + 1.0, -value - 1.0, value * 1.5 + 1))
        case str() if value:
            place = chance.randrange(len(value))
            return value[:place] + chance.choice("0123456789abcdef") + value[place + chance.randrange(2) :]
        case bytes() if value:
            return chance.choice((flipped, truncated, inserted, zeroed))(chance, value)
        case _:
            return chance.choice(("x", 0, 1))


def leaves_of(tree: Any) -> list[tuple[Any, Any]]:
    """Every leaf of a tree of dicts and lists, empty ones included, as (holder, key)."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found: list[tuple[Any, Any]] = []
    for key, value in items:
        found += leaves_of(value) if isinstance(value, dict | list) and value else [(tree, key)]
    return found


def _leaf(chance: random.Random, tree: Any) -> tuple[Any, Any]:
    """A random leaf; each field of the text has the same probability."""
    if not isinstance(tree, dict) or not tree:
        return tree, 0
    key = chance.choice(sorted(tree))
    return chance.choice(leaves_of(tree[key]) or [(tree, key)])


def _with_raw(chance: random.Random, text: bytes, raw: bytes) -> bytes:
    tree = msgspec.json.decode(text)
    holder, key = _leaf(chance, tree)
    holder[key] = msgspec.Raw(raw)
    return msgspec.json.encode(tree)
