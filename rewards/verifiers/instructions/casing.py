"""Capital and small letters."""

from __future__ import annotations

from rewards.verifiers.check import Answer
from rewards.verifiers.instructions.counts import words_of
from rewards.verifiers.instructions.rule import Instruction, NoParameters, counted
from rewards.verifiers.lookalikes import num_capitals, num_small_capitals


def num_capital_words(text: str) -> int:
    """Words of two or more letters, all of them capitals."""
    return sum(len(word) > 1 and word.isupper() for word in words_of(text))


def num_title_words(text: str) -> int:
    """Words that begin with a capital and go on in small letters."""
    return sum(len(word) > 1 and word[0].isupper() and word[1:].islower() for word in words_of(text))


def _lowercase(answer: Answer, rule: NoParameters) -> str:
    del rule
    is_small = answer.text.islower() and not num_capitals(answer.text) and not num_small_capitals(answer.text)
    return "" if is_small else "it is not all in small letters"


def _uppercase(answer: Answer, rule: NoParameters) -> str:
    del rule
    return "" if answer.text.isupper() else "it is not all in capitals"


INSTRUCTIONS = {
    "all_lowercase": Instruction(NoParameters, _lowercase),
    "all_uppercase": Instruction(NoParameters, _uppercase),
    "capital_words": counted(num_capital_words, "words in capitals"),
    "title_words": counted(num_title_words, "words in title case"),
}
