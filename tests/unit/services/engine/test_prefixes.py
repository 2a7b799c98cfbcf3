from __future__ import annotations

import random

import pytest
import torch

from services.engine.prefixes import BLOCK_TOKENS, PrefixStore

_ROWS, _HEADS, _WIDTH = 4, 2, 3
_BLOCK_BYTES = BLOCK_TOKENS * _ROWS * _HEADS * _WIDTH * 4


def rows_of(token_ids: list[int], scope: str = "") -> torch.Tensor:
    """What a model would have computed: each row depends on all tokens before it."""
    sums = torch.tensor(token_ids, dtype=torch.float32).cumsum(0) + len(scope) * 1000
    return sums[:, None, None, None] + torch.arange(_ROWS * _HEADS * _WIDTH).reshape(_ROWS, _HEADS, _WIDTH)


def keep(store: PrefixStore, ids: list[int], scope: str = "a") -> None:
    store.keep(scope, ids, lambda start, stop: rows_of(ids, scope)[start:stop])


def num_found(store: PrefixStore, ids: list[int], scope: str = "a") -> int:
    places = store.find(scope, ids)
    if places:
        assert torch.equal(store.read(places), rows_of(ids, scope)[: BLOCK_TOKENS * len(places)])
    return BLOCK_TOKENS * len(places)


def test_it_finds_the_longest_common_beginning_in_whole_blocks_and_never_the_whole_prompt() -> None:
    store = PrefixStore(100 * _BLOCK_BYTES)
    ids = list(range(100))
    assert num_found(store, ids) == 0
    keep(store, ids)
    assert store.num_bytes == 6 * _BLOCK_BYTES
    assert num_found(store, [*ids, 1, 2]) == 96
    assert num_found(store, ids[:96]) == 80, "the last token of a prompt is always computed"
    assert num_found(store, [*ids[:50], 7, *ids[51:]]) == 48
    assert num_found(store, [7, *ids]) == 0


def test_scopes_and_drops_part_what_is_kept() -> None:
    store = PrefixStore(100 * _BLOCK_BYTES)
    ids = list(range(40))
    keep(store, ids)
    assert num_found(store, ids, "bb") == 0
    keep(store, ids, "bb")
    assert num_found(store, ids, "bb") == num_found(store, ids) == 32
    store.drop()
    assert (store.generation, store.num_bytes) == (1, 0)
    assert num_found(store, ids) == num_found(store, ids, "bb") == 0


def test_common_blocks_are_kept_once() -> None:
    store = PrefixStore(100 * _BLOCK_BYTES)
    ids = list(range(64))
    for last in range(5):
        keep(store, [*ids, *[last] * 16])
    assert store.num_bytes == (4 + 5) * _BLOCK_BYTES


def test_the_leaf_used_longest_ago_goes_first() -> None:
    store = PrefixStore(4 * _BLOCK_BYTES)
    first, second, third = ([number] * 33 for number in (1, 2, 3))
    keep(store, first)
    keep(store, second)
    assert num_found(store, first) == 32
    keep(store, third)
    assert num_found(store, second) == 0
    assert num_found(store, first) == num_found(store, third) == 32
    keep(store, [3] * 17 + [4] * 16)
    assert num_found(store, third) == 32
    assert num_found(store, first) == 16, "its end goes before its beginning"


@pytest.mark.parametrize("num_bytes", [0, _BLOCK_BYTES - 1])
def test_without_room_for_a_block_nothing_is_kept(num_bytes: int) -> None:
    store = PrefixStore(num_bytes)
    keep(store, [1] * 100)
    assert num_found(store, [1] * 100) == store.num_bytes == 0


def test_a_sequence_longer_than_the_memory_keeps_its_beginning() -> None:
    store = PrefixStore(3 * _BLOCK_BYTES)
    keep(store, list(range(200)))
    assert num_found(store, list(range(200))) == 48


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_it_never_exceeds_its_size_and_never_gives_the_rows_of_others(seed: int) -> None:
    rolls, store = random.Random(seed), PrefixStore(12 * _BLOCK_BYTES)
    for _ in range(600):
        scope = rolls.choice(["a", "bb"])
        ids = [rolls.randrange(2) for _ in range(rolls.randrange(8))]
        ids = [token for token in ids for _ in range(BLOCK_TOKENS)][: rolls.randrange(1, 120)] or [1]
        match rolls.randrange(20):
            case 0:
                store.drop()
            case number if number < 10:
                keep(store, ids, scope)
                assert num_found(store, [*ids, 5], scope) >= min(len(ids) // BLOCK_TOKENS, 12) * BLOCK_TOKENS
            case _:
                num_found(store, ids, scope)
        assert store.num_bytes <= 12 * _BLOCK_BYTES
