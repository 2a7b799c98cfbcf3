"""How long: words, sentences, paragraphs, characters, lines."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from rewards.verifiers.check import Answer
from rewards.verifiers.instructions.rule import Instruction, Least, Most, NoParameters
from rewards.verifiers.lookalikes import seen

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_SENTENCE_END = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]+[\"'\u201d\u2019)\]*_]*(?:\s|\Z)|[\u3002\uff01\uff1f]+|\n\s*\n"
)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")


def words_of(text: str) -> list[str]:
    """Runs of letters and digits, with inner hyphens and apostrophes. A language without spaces has few."""
    return _WORD.findall(text if text.isascii() else _unmarked(text))


def _unmarked(text: str) -> str:
    """Without marks, which belong to the letter before them and end no word."""
    return "".join(letter for letter in text if unicodedata.category(letter)[0] != "M")


def num_words(text: str) -> int:
    """How many words."""
    return len(words_of(text))


def num_sentences(text: str) -> int:
    """Stretches with a word in them, up to a full stop, an exclamation or question mark, or a blank line."""
    return sum(bool(_WORD.search(part)) for part in _SENTENCE_END.split(text))


def num_paragraphs(text: str) -> int:
    """Stretches with a word in them, between blank lines."""
    return sum(bool(_WORD.search(part)) for part in _PARAGRAPH_END.split(text))


def num_characters(text: str) -> int:
    """Without white space at the ends."""
    return len(text.strip())


def _at_least(count: Callable[[str], int], what: str) -> Instruction:
    def problem(answer: Answer, rule: Least) -> str:
        found = count(answer.text)
        return "" if found >= rule.value else f"{found} {what}, {rule.value} or more asked"

    return Instruction(Least, problem)


def _at_most(count: Callable[[str], int], what: str) -> Instruction:
    def problem(answer: Answer, rule: Most) -> str:
        found = count(answer.text)
        return "" if found <= rule.value else f"{found} {what}, {rule.value} or fewer asked"

    return Instruction(Most, problem)


def _unique_lines(answer: Answer, rule: NoParameters) -> str:
    del rule
    before: set[str] = set()
    for line in answer.text.splitlines():
        folded = " ".join(words_of(seen(line).casefold()))
        if folded in before:
            return f"the line {line.strip()[:40]!r} stands twice"
        if folded:
            before.add(folded)
    return ""


INSTRUCTIONS = {
    "min_words": _at_least(num_words, "words"),
    "max_words": _at_most(num_words, "words"),
    "min_sentences": _at_least(num_sentences, "sentences"),
    "max_sentences": _at_most(num_sentences, "sentences"),
    "min_paragraphs": _at_least(num_paragraphs, "paragraphs"),
    "max_paragraphs": _at_most(num_paragraphs, "paragraphs"),
    "min_characters": _at_least(num_characters, "characters"),
    "max_characters": _at_most(num_characters, "characters"),
    "unique_lines": Instruction(NoParameters, _unique_lines),
}
