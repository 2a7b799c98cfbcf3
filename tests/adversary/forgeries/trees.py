"""Damages a tree of lists and dicts, such as the header of a payload, at a random place. Pure, apart from the random source."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.adversary.forgeries.texts import ODD, other_value

Tree = list[Any]
SpoilTree = Callable[[random.Random, Tree], None]
_NUMBERS = (
    -(2**63), -(2**31), -97, -96, -2, 96, 97, 127, 128, 2**12, 2**16, 2**18, 2**62, 2**64 - 1,
)  # fmt: skip
_VALUES = (*_NUMBERS, *(odd for odd in ODD if not isinstance(odd, dict)), b"", b"\xff" * 40)


def places_of(tree: Any) -> list[tuple[Any, Any]]:
    """Every node of a tree, at any depth, as (holder, key)."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((tree, key), *places_of(value))]


def _another_value(chance: random.Random, tree: Tree) -> None:
    holder, key = chance.choice(places_of(tree))
    holder[key] = chance.choice((*_VALUES, other_value(chance, holder[key])))


def _entry_missing(chance: random.Random, tree: Tree) -> None:
    holder, key = chance.choice(places_of(tree))
    del holder[key]


def _entry_doubled(chance: random.Random, tree: Tree) -> None:
    holder, key = chance.choice(places_of(tree))
    if isinstance(holder, dict):
        holder["Q7"] = holder[key]
    else:
        holder.insert(chance.randrange(len(holder) + 1), holder[key])


def _entries_exchanged(chance: random.Random, tree: Tree) -> None:
    holder = chance.choice([holder for holder, _ in places_of(tree) if len(holder) > 1])
    one, other = chance.sample(list(holder) if isinstance(holder, dict) else range(len(holder)), 2)
    holder[one], holder[other] = holder[other], holder[one]


def _numbers_moved(chance: random.Random, tree: Tree) -> None:
    """Move an amount from one number to its neighbour, or to the same field of another entry, so that the sum stays the same."""
    numbers = [place for place in places_of(tree) if type(place[0][place[1]]) is int]
    holder, key = chance.choice(numbers)
    others = [place for place in numbers if (place[0] is holder) != (place[1] == key)]
    other_holder, other_key = chance.choice(others)
    amount = chance.choice((1, -1, 2, 4, -4, chance.randrange(1, 40)))
    holder[key] += amount
    other_holder[other_key] -= amount


TREES: dict[str, SpoilTree] = {
    "another value": _another_value,
    "entry missing": _entry_missing,
    "entry doubled": _entry_doubled,
    "entries exchanged": _entries_exchanged,
    "numbers that still add up": _numbers_moved,
}
