"""Length checks: words, sentences, paragraphs, characters, lines."""

from __future__ import annotations

import re
import unicodedata

from examples.verifiers.instructions.rule import AtLeast, AtMost, counted, of_text
from rewards.verifiers.lookalikes import as_displayed

_WORD = re.compile(r"\w+(?:['\u2019-]\w+|(?<=\d)[.,](?=\d)\w+)*")
_SENTENCE_END = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]+[\"'\u201d\u2019)\]*_]*(?:\s|\Z)|[\u3002\uff01\uff1f]+|\n\s*\n"
)
_NO_END = re.compile(
    r"\b(?:Mrs?|Ms|Dr|Prof|Sr|Jr|St|vs|cf|approx|e\.g|i\.e)\.(?=\s)|\b(?:[ap]\.m|(?:[A-Z]\.)+[A-Z])\.(?=\s+[a-z])|^[ \t]*\d{1,3}\.(?=[ \t])",
    re.MULTILINE,
)
"""A full stop of an abbreviation, or of a list's number."""
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")


def words_of(text: str) -> list[str]:
    """Runs of letters and digits, with inner hyphens and apostrophes. Languages without spaces have few."""
    return _WORD.findall(text if text.isascii() else _unmarked(text))


def _unmarked(text: str) -> str:
    """The text without combining marks. A mark belongs to the letter before it and does not end a word."""
    return "".join(letter for letter in text if unicodedata.category(letter)[0] != "M")


def num_words(text: str) -> int:
    """The number of words."""
    return len(words_of(text))


def num_sentences(text: str) -> int:
    """The number of parts that contain a word and end with a full stop, exclamation mark, question mark or blank line."""
    return sum(bool(_WORD.search(part)) for part in _SENTENCE_END.split(_NO_END.sub("", text)))


def num_paragraphs(text: str) -> int:
    """The number of parts between blank lines that contain a word."""
    return sum(bool(_WORD.search(part)) for part in _PARAGRAPH_END.split(text))


def num_characters(text: str) -> int:
    """The length without white space at the ends."""
    return len(text.strip())


def _unique_lines(text: str) -> str:
    before: set[str] = set()
    for line in text.splitlines():
        folded = " ".join(words_of(as_displayed(line).casefold()))
        if folded in before:
            return f"the line {line.strip()[:40]!r} appears twice"
        if folded:
            before.add(folded)
    return ""


_COUNTS = {
    "words": num_words,
    "sentences": num_sentences,
    "paragraphs": num_paragraphs,
    "characters": num_characters,
}
INSTRUCTIONS = {
    **{f"min_{what}": counted(count, what, AtLeast) for what, count in _COUNTS.items()},
    **{f"max_{what}": counted(count, what, AtMost) for what, count in _COUNTS.items()},
    "unique_lines": of_text(_unique_lines),
}
