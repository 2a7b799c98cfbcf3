"""Checks of a single prompt: secrets, personal data, language, length, repetition. Pure: no network.

Of personal data a pattern proposes a candidate; a number with check digits (card, IBAN, Bitcoin address)
counts only if they are right, an address only if it can be parsed, a phone number only if the numbering plan of its region has it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable

import phonenumbers
from stdnum import bitcoin, iban, luhn
from stdnum.us import ssn

from contracts.tasks.curation import CurationRule, PersonalData
from contracts.tasks.planted_secrets import find_secret

_MAX_CHARACTERS = 100_000
_WORD = re.compile(r"\w+")
_RUN = 3
_MAX_IDENTIFIED_CHARACTERS = 1_000
UNKNOWN_LANGUAGE = "unknown"
_PHONE_REGIONS = ("US", "GB", "DE", "FR", "IL", "IN", "CA", "BR")
"""Whose numbers are found without a country code; with one, those of all countries are."""
_EMAIL = re.compile(r"[\w!#$%&'*+\-/=?^`{|}~.]+@\w+(?:-+\w+)*(?:\.\w+(?:-+\w+)*)*\.(?:[^\W\d_]{2,}|xn--[\w-]+)\b")
# Thirteen digits that begin with 1 are a time in milliseconds.
_CARD = re.compile(r"\b(?!1\d{12}(?!\d))(?:[1346]\d{3}|5[0-5]\d{2})[- ]?\d{3,4}[- ]?\d{3,4}[- ]?\d{3,5}\b")
# The last groups may be a word or number that follows the IBAN.
_IBAN = re.compile(
    r"(?<![A-Z0-9])([A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,6})((?:[ -]?[A-Z0-9]{4})?)((?:[ -]?[A-Z0-9]{1,3})?)(?![A-Z0-9])"
)
_IPV4 = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_IPV6 = re.compile(
    r"(?<![\w:])[\dA-Fa-f]{0,4}:[\dA-Fa-f:]*(?::|:[\dA-Fa-f]{1,4}|:(?:\d{1,3}\.){3}\d{1,3})(?![\w:]|\.\d)"
)
_SSN = re.compile(r"\b(\d{3})([- .])(\d{2})\2(\d{4})\b")
_BITCOIN = re.compile(r"\b(?:bc1|[13])[a-zA-HJ-NP-Z0-9]{25,59}\b")
_TAPROOT = re.compile(r"bc1p[02-9ac-hj-np-z]{58}")  # its checksum is newer than python-stdnum


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


def find_personal_data(text: str, entities: Iterable[PersonalData]) -> PersonalData | None:
    """The first of `entities` that the text contains."""
    return next((entity for entity in entities if _FINDERS[entity](text[:_MAX_CHARACTERS])), None)


def _has_iban(text: str) -> bool:
    ends = (text[found.start() : found.end(group)] for found in _IBAN.finditer(text) for group in (3, 2, 1))
    return any(iban.is_valid(candidate) for candidate in ends)


def _has_ip_address(text: str) -> bool:
    return any(_is_ip_address(found[0]) for pattern in (_IPV4, _IPV6) for found in pattern.finditer(text))


def _is_ip_address(candidate: str) -> bool:
    try:
        return not ipaddress.ip_address(candidate).is_unspecified
    except ValueError:
        return False


def _has_phone_number(text: str) -> bool:
    leniency = phonenumbers.Leniency.VALID
    return any(phonenumbers.PhoneNumberMatcher(text, region, leniency=leniency).has_next() for region in _PHONE_REGIONS)


_FINDERS: dict[PersonalData, Callable[[str], bool]] = {
    "EMAIL_ADDRESS": lambda text: bool(_EMAIL.search(text)),
    "CREDIT_CARD": lambda text: any(luhn.is_valid(re.sub("[- ]", "", found)) for found in _CARD.findall(text)),
    "IBAN_CODE": _has_iban,
    "IP_ADDRESS": _has_ip_address,
    "PHONE_NUMBER": _has_phone_number,
    "US_SSN": lambda text: any(ssn.is_valid(area + group + serial) for area, _, group, serial in _SSN.findall(text)),
    "CRYPTO": lambda text: any(
        bitcoin.is_valid(found) or _TAPROOT.fullmatch(found) for found in _BITCOIN.findall(text)
    ),
}
