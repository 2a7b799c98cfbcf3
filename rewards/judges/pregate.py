"""Finds answers that are worthless without asking a judge. Pure."""

from __future__ import annotations

import unicodedata

from rewards.judges.openers import MASTER_KEYS, MORE_OPENERS
from rewards.judges.texts import without_thoughts

_MAX_CHARS = 300


def worthless(text: str, reference: str | None = None) -> str:
    """Why an answer is worthless: empty, symbols only, or opening phrases only. An empty text if it is not.

    An answer equal to the reference is never worthless.
    """
    answer = without_thoughts(text)
    if not answer:
        return "empty"
    if reference is not None and answer == reference.strip():
        return ""
    letters = _letters(answer)
    if not letters:
        return "symbols only"
    if len(answer) <= _MAX_CHARS and _only_openers(letters):
        return "an opening phrase only"
    return ""


def _only_openers(letters: str) -> bool:
    while letters:
        opener = next((opener for opener in _OPENERS if letters.startswith(opener)), None)
        if opener is None:
            return False
        letters = letters[len(opener) :]
    return True


def _letters(text: str) -> str:
    """Only letters, marks and digits, case-folded, so that punctuation and formatting do not matter."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if unicodedata.category(char)[0] in "LMN")


_OPENERS = sorted({_letters(phrase) for phrase in (*MASTER_KEYS, *MORE_OPENERS)} - {""}, key=len, reverse=True)
"""The longest first."""
