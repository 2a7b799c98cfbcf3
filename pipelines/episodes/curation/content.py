"""Checks of a single prompt: secrets, personal data, language, length, repetition. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from contracts.tasks.curation import CurationRule
from pipelines.episodes.curation.personal import find_personal_data
from pipelines.episodes.curation.secrets import find_secret

_WORD = re.compile(r"\w+")
_RUN = 3
_MAX_IDENTIFIED_CHARACTERS = 1_000
UNKNOWN_LANGUAGE = "unknown"


def language_of(text: str) -> str:
    """ISO 639-1 code of the likeliest language; `unknown` if the text has no letter."""
    if not any(character.isalpha() for character in text):
        return UNKNOWN_LANGUAGE
    # Imported late: it loads a model, which only tasks that ask for languages need.
    from py3langid import classify  # noqa: PLC0415

    code: str = classify(text[:_MAX_IDENTIFIED_CHARACTERS])[0]
    return code


def repetition(text: str) -> float:
    """The share of three-word runs that occurred earlier in the text, in [0, 1]."""
    words = [word.lower() for word in _WORD.findall(text)]
    runs = [tuple(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)]
    return 1.0 - len(set(runs)) / len(runs) if runs else 0.0


def refusal(rule: CurationRule, text: str, language: str) -> str | None:
    """Why a prompt is filtered, as the ledger names it; None if it passes."""
    length = len(text.strip())
    rules: tuple[tuple[str, Callable[[], object]], ...] = (
        ("secret", lambda: rule.secrets and find_secret(text)),
        ("personal_data", lambda: find_personal_data(text, rule.personal_data)),
        ("too_short", lambda: length < rule.min_characters),
        ("too_long", lambda: rule.max_characters is not None and length > rule.max_characters),
        ("language", lambda: rule.languages and language not in rule.languages),
        ("repetitive", lambda: rule.max_repetition < 1.0 and repetition(text) > rule.max_repetition),
    )
    return next((name for name, is_broken in rules if is_broken()), None)
