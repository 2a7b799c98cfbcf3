"""Text preparation that several verifiers share."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

from rewards.verifiers.check import BadReference
from rewards.verifiers.strict_json import NotJson, read_json

_SPACE = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)


def without_articles(text: str) -> str:
    """Without the words a, an, the."""
    return _ARTICLES.sub(" ", text)


def without_punctuation(text: str) -> str:
    """Without the characters that Unicode calls punctuation, and ASCII's symbols."""
    return text.translate(_punctuation())


def squad_tokens(text: str) -> list[str]:
    """Words as SQuAD's evaluation compares them: lower case, no punctuation, no articles."""
    return without_articles(without_punctuation(text.lower())).split()


def plain_spaces(text: str) -> str:
    """With a plain space for each other kind of space, such as a no-break space."""
    return _SPACE.sub(" ", text)


def read_references(text: str) -> list[str]:
    """The texts of a reference: a JSON list of texts, or the reference itself as one text. Raises BadReference: it is a list of something else."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        value = read_json(text)
    except NotJson:
        return [text]
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise BadReference("metadata.reference is a JSON list, but not a list of texts")
    return value


@cache
def _punctuation() -> dict[int, None]:
    ascii_symbols = {ord(symbol) for symbol in "$+<=>^`|~"}
    categories = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P")}
    return dict.fromkeys(ascii_symbols | categories)
