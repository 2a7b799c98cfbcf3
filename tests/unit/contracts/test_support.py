"""Which tokens each sampled token was drawn from: packed in records, checked wherever a record enters."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRecord
from contracts.packing import MOST_IDS, pack_support, support_of, support_problem
from contracts.records import GenerationBody, open_body, pack_body, pack_floats, pack_ids
from tests.each_case import each_case

PLACES = st.lists(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=MOST_IDS), min_size=1, max_size=9)


@given(PLACES)
def test_what_is_packed_comes_back(places: list[set[int]]) -> None:
    packed = pack_support([sorted(ids) for ids in places])
    assert not support_problem(packed, np.array([min(ids) for ids in places], np.int32))
    found = support_of(packed, len(places))
    assert [set(row[row >= 0].tolist()) for row in found] == places


@pytest.mark.parametrize("places", [[], [[1], None], [[1], []], [range(MOST_IDS + 1)]])
def test_an_answer_with_an_unknown_support_has_none(places: list[list[int] | None]) -> None:
    assert not pack_support(places)


def raw(counts: list[int], ids: list[int]) -> bytes:
    return zstandard.compress(np.array(counts, np.uint8).tobytes() + np.array(ids, "<i4").tobytes())


@each_case(
    ("packed", "says"),
    [
        (raw([1, 2], [5, 6, 8]), "token 1 was sampled as 7, which its support excludes"),
        (raw([1, 1], [7, 5]), "token 0 was sampled as 5"),
        (raw([1, 2], [5, 7]), "2 ids are not 1 to 64"),
        (raw([0, 1], [7]), "1 ids are not 1 to 64"),
        (raw([1, 65], [5, *range(7, 72)]), "66 ids are not 1 to 64"),
        (raw([1, 2], [5, 7, 7]), "twice"),
        (raw([1, 2], [5, 7, -1]), "negative"),
        (raw([1], []), "cannot be read"),
        (b"junk", "cannot be read"),
        (zstandard.compress(bytes(65 * 2**20)), "cannot be read: it claims more than"),
    ],
)
def test_what_cannot_be_the_support_is_named(packed: bytes, says: str) -> None:
    assert says in support_problem(packed, np.array([5, 7], np.int32))


def test_a_body_whose_support_excludes_its_own_token_is_damaged() -> None:
    body = GenerationBody(
        messages=[], text="", prompt_ids=pack_ids([1]), completion_ids=pack_ids([5, 7]), logprobs=pack_floats([0.0, 0.0]),
        support=raw([1, 1], [5, 6]),
    )  # fmt: skip
    with pytest.raises(InvalidRecord, match="token 1 was sampled as 7"):
        open_body(GenerationBody, pack_body(body))
