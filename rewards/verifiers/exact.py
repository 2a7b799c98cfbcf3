"""`exact`: the answer equals the text of `metadata.reference`, after the normalisation that the task file names."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, BadReference, Check, Verifier, read_config, right, with_reference
from rewards.verifiers.strict_json import NotJson, read_json

VERSION = 2
_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)
_SPACE = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


class Config(TaskSection):
    """Differences to ignore, in answer and reference."""

    raw: bool = False
    """Nothing is the same but the same characters. By default texts are compared in Unicode's form NFC, and any kind of space, such as a
    no-break space, is a space."""
    strip: bool = True
    """White space at both ends."""
    casefold: bool = False
    """Capital letters."""
    punctuation: bool = False
    """Punctuation, anywhere."""
    articles: bool = False
    """The words a, an, the."""
    many: bool = False
    """The reference is a JSON list of texts, and each of them is right."""


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    rule = read_config(Config, config)

    def check(answer: Answer, reference: str) -> Check:
        references = read_references(reference) if rule.many else [reference]
        # An empty reference would reward an empty answer.
        wanted = {text for reference in references if (text := _normalised(reference, rule)).strip()}
        if not wanted:
            raise BadReference("metadata.reference is empty, also after normalisation")
        return right() if _normalised(answer.text, rule) in wanted else Check(0.0, reason="not the reference")

    return with_reference(check)


def _normalised(text: str, rule: Config) -> str:
    if not rule.raw:
        text = _SPACE.sub(" ", unicodedata.normalize("NFC", text))
    if rule.casefold:
        text = text.casefold()
    if rule.punctuation:
        text = text.translate(_punctuation())
    if rule.articles:
        text = _ARTICLES.sub(" ", text)
    if rule.punctuation or rule.articles:
        text = " ".join(text.split())
    return text.strip() if rule.strip else text


def explain(answer: Answer, config: Mapping[str, Any]) -> dict[str, str]:
    """What is compared: the answer and the reference, each after the normalisation."""
    rule = read_config(Config, config)
    reference = answer.reference or ""
    references = read_references(reference) if rule.many else [reference]
    return {
        "answer": _normalised(answer.text, rule),
        "reference": " | ".join(_normalised(text, rule) for text in references),
    }


def squad_tokens(text: str) -> list[str]:
    """Words as SQuAD's evaluation compares them: lower case, no punctuation, no articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_punctuation())).split()


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
