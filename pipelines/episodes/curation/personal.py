"""Finds personal data in a text, by patterns and check digits. No network, no model.

A pattern proposes a candidate. A number with check digits (card, IBAN, Bitcoin address) counts only if they are right, an address
only if it can be parsed, a phone number only if the numbering plan of its region has it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator

import phonenumbers
from stdnum import bitcoin, iban, luhn
from stdnum.us import ssn

from contracts.tasks.curation import PersonalData

_MAX_CHARACTERS = 100_000
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


def _phone_numbers(text: str) -> Iterator[phonenumbers.PhoneNumberMatch]:
    for region in _PHONE_REGIONS:
        yield from phonenumbers.PhoneNumberMatcher(text, region, leniency=phonenumbers.Leniency.VALID)


_FINDERS: dict[PersonalData, Callable[[str], bool]] = {
    "EMAIL_ADDRESS": lambda text: bool(_EMAIL.search(text)),
    "CREDIT_CARD": lambda text: any(luhn.is_valid(re.sub("[- ]", "", found)) for found in _CARD.findall(text)),
    "IBAN_CODE": _has_iban,
    "IP_ADDRESS": _has_ip_address,
    "PHONE_NUMBER": lambda text: any(True for _ in _phone_numbers(text)),
    "US_SSN": lambda text: any(ssn.is_valid(area + group + serial) for area, _, group, serial in _SSN.findall(text)),
    "CRYPTO": lambda text: any(
        bitcoin.is_valid(found) or _TAPROOT.fullmatch(found) for found in _BITCOIN.findall(text)
    ),
}
