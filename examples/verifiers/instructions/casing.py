"""Capital and small letters."""

from __future__ import annotations

from examples.verifiers.instructions.counts import words_of
from examples.verifiers.instructions.rule import counted, of_text
from rewards.verifiers.lookalikes import num_capitals, num_small_capitals


def num_capital_words(text: str) -> int:
    """Words of two or more letters, all of them capitals."""
    return sum(len(word) > 1 and word.isupper() for word in words_of(text))


def num_title_words(text: str) -> int:
    """Words of one capital followed by small letters."""
    return sum(len(word) > 1 and word[0].isupper() and word[1:].islower() for word in words_of(text))


def _lowercase(text: str) -> str:
    is_small = text.islower() and not num_capitals(text) and not num_small_capitals(text)
    return "" if is_small else "it is not all in small letters"


def _uppercase(text: str) -> str:
    return "" if text.isupper() else "it is not all in capitals"


INSTRUCTIONS = {
    "all_lowercase": of_text(_lowercase),
    "all_uppercase": of_text(_uppercase),
    "capital_words": counted(num_capital_words, "words in capitals"),
    "title_words": counted(num_title_words, "words in title case"),
}
