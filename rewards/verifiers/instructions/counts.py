"""How long: words, sentences, paragraphs, characters, lines."""

from __future__ import annotations

import re
import unicodedata

from rewards.verifiers.instructions.rule import AtLeast, AtMost, counted, of_text
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


def _unique_lines(text: str) -> str:
    before: set[str] = set()
    for line in text.splitlines():
        folded = " ".join(words_of(seen(line).casefold()))
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
