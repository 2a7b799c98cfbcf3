from __future__ import annotations

import pytest

from rewards.judges.pregate import MASTER_KEYS, worthless
from tests.each_case import each_case


@each_case("key", MASTER_KEYS)
def test_every_master_key_is_worthless(key: str) -> None:
    assert worthless(key)
    assert worthless(f"\n**{key.upper()}**\n")


def test_there_are_enough_master_keys_and_they_differ() -> None:
    assert len(set(MASTER_KEYS)) == len(MASTER_KEYS) >= 30


@pytest.mark.parametrize(
    "text", ["", " \n", "<think>all of it</think>", "<think>cut", "!!!", "\u2014 ...", "\U0001f600"]
)
def test_what_says_nothing_is_worthless(text: str) -> None:
    assert worthless(text)


def test_openers_in_a_row_are_still_openers() -> None:
    assert worthless("Sure, here is the answer:\n\nLet's think step by step. Solution:") == "an opening phrase only"


@each_case(
    "text",
    [
        "4", "Yes.", "No", "x", "Solution: 4", "Let's think step by step. 2+2=4", "Sure", "Answer: B", "solutions",
        "\u7b54\u6848\uff1a\u56db", "<think>Solution:</think>4",
    ],
)  # fmt: skip
def test_short_answers_are_answers(text: str) -> None:
    assert worthless(text) == ""


def test_what_the_reference_says_is_never_worthless() -> None:
    assert worthless("Solution", "Solution") == worthless("=>", "=>") == ""
    assert worthless("Solution", "L\u00f6sung")
    assert worthless("", "")
