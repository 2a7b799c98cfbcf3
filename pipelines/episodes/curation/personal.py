"""Personal data in a text. No network and no model: Presidio's patterns and check digits."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import tldextract

_LONGEST = 100_000
_CERTAIN_ENOUGH = 0.4
"""Presidio's score of a pattern without words around it that support it; what fails its check digits has 0."""
_CLASSES = {
    "EMAIL_ADDRESS": "EmailRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "PHONE_NUMBER": "PhoneRecognizer",
    "US_SSN": "UsSsnRecognizer",
}


def find_personal_data(text: str, entities: Iterable[str]) -> str | None:
    """The first of `entities` (Presidio's names) that the text holds."""
    for entity in entities:
        found = _recogniser(entity).analyze(text[:_LONGEST], [entity], None)
        if any(result.score >= _CERTAIN_ENOUGH for result in found):
            return entity
    return None


@cache
def _recogniser(entity: str) -> Any:
    kind: Any = getattr(_recognisers(), _CLASSES[entity])
    if entity != "EMAIL_ADDRESS":
        return kind()
    # Presidio's own asks the network for a newer list of domains; the one that comes with tldextract will do.
    domains = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    class OfflineEmail(kind):  # type: ignore[misc] # no type information about what is imported late
        def validate_result(self, pattern_text: str) -> bool:
            return bool(domains(pattern_text).fqdn)

    return OfflineEmail()


@cache
def _recognisers() -> Any:
    # Presidio imports spaCy, and that takes torch where it can have it: a gigabyte of nothing that is used here.
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from presidio_analyzer import predefined_recognizers  # noqa: PLC0415 it takes seconds
    finally:
        if hidden:
            del sys.modules["torch"]
    return predefined_recognizers
