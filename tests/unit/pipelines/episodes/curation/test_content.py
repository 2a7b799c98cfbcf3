from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from contracts.clusters import Clusters, words_of
from contracts.tasks.curation import CurationRule, PersonalData
from pipelines.episodes.curation.content import find_personal_data, language_of, refusal, repetition
from tests.each_case import each_case

ALL: tuple[PersonalData, ...] = get_args(PersonalData)
AWS = "AKIA" + "IOSFODNN7EXAMPLX"


@each_case(
    ("text", "entity"),
    [
        ("write to ann@example.com", "EMAIL_ADDRESS"),
        ("card 4111 1111 1111 1111", "CREDIT_CARD"),
        ("card 4111 1111 1111 1112", None),  # its check digit is wrong
        ("at 1732275484123 ms", None),
        ("write to x@y, foo@bar or @ann", None),
        ("write to anna@bücher.example", "EMAIL_ADDRESS"),
        ("DE89370400440532013000", "IBAN_CODE"),
        ("pay GB82 WEST 1234 5698 7654 32 today", "IBAN_CODE"),
        ("DE88370400440532013000", None),  # its check digits are wrong
        ("ping 10.1.2.3", "IP_ADDRESS"),
        ("ping 2001:db8::17.", "IP_ADDRESS"),
        ("ping ::ffff:10.0.0.1", "IP_ADDRESS"),
        ("std::vector at 12:34:56, aa:bb:cc:dd:ee:ff, 300.1.2.3, ::", None),
        ("call +49 30 901820", "PHONE_NUMBER"),
        ("call (650) 253-0000", "PHONE_NUMBER"),
        ("call 12 34", None),
        ("it is 536-90-4399", "US_SSN"),
        ("it is 000-12-3456 or 536-90.4399", None),
        ("pay 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "CRYPTO"),
        ("pay 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb", None),  # its checksum is wrong
        ("pay bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "CRYPTO"),
        ("pay bc1p5cyxnuxmeuwuvkwfem96lqzszd02n6xdcjrs20cac6yqjjwudpxqkedrcr", "CRYPTO"),
        ("a table for 4 at 19:30, Lee", None),
    ],
)
def test_personal_data_is_found_by_pattern_and_check_digits(text: str, entity: str | None) -> None:
    assert find_personal_data(text, ALL) == entity


def test_only_what_the_task_asks_about_is_personal() -> None:
    assert find_personal_data("write to ann@example.com", ("IBAN_CODE",)) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("What is the weather like in the city today?", "en"),
        ("Wie ist das Wetter heute in der Stadt?", "de"),
        ("¿Qué tiempo hace hoy en la ciudad?", "es"),
        ("1234 !!", "unknown"),
    ],
)
def test_languages(text: str, code: str) -> None:
    assert language_of(text) == code


def test_repetition_is_the_share_of_runs_that_were_there_before() -> None:
    assert repetition("one two three four five") == 0.0
    assert repetition("buy now please " * 20) > 0.9
    assert repetition("") == 0.0


@each_case(
    ("rule", "text", "reason"),
    [
        ({"secrets": True}, AWS, "secret"),
        ({}, AWS, None),
        ({"personal_data": ["EMAIL_ADDRESS"]}, "ann@example.com", "personal_data"),
        ({"min_characters": 5}, " hi ", "too_short"),
        ({"max_characters": 5}, "much too long", "too_long"),
        ({"languages": ["en"]}, "de", "language"),
        ({"max_repetition": 0.5}, "again and again " * 9, "repetitive"),
        ({"max_repetition": 0.5, "min_characters": 1}, "a table for two", None),
    ],
)
def test_each_rule_names_what_it_refuses(rule: dict[str, object], text: str, reason: str | None) -> None:
    language = text if text == "de" else "en"
    assert refusal(CurationRule.model_validate(rule), text, language) == reason


def test_without_rules_nothing_is_looked_at() -> None:
    assert CurationRule().is_idle
    assert CurationRule(topics={"food": ("a table",)}).is_idle
    assert not CurationRule(secrets=True).is_idle


def test_rules_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValidationError, match="max_characters"):
        CurationRule(min_characters=9, max_characters=3)
    with pytest.raises(ValidationError, match="example"):
        CurationRule(topics={"food": ()})


def test_topics_are_told_by_their_examples_and_the_rest_falls_into_few_stable_buckets() -> None:
    clusters = Clusters(
        {
            "booking": ("a table for two at eight tonight", "reserve a table for the family"),
            "code": ("write a python function that sorts a list", "fix this traceback in my program"),
        }
    )
    assert clusters.of("Could you reserve us a table for five?") == "booking"
    assert clusters.of("my python program prints a traceback") == "code"
    others = {clusters.of(text) for text in ("quarterly revenue of the company", "poem about winter", "zzz qqq")}
    assert all(name.startswith("other-") for name in others)
    # What shares most of its words shares its bucket.
    assert clusters.of("quarterly revenue of the company") == clusters.of("the quarterly company revenue")


def test_only_what_users_wrote_is_read() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert words_of(messages) == "one\n\nthree"
