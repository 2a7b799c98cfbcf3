from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.clusters import Clusters, words_of
from contracts.tasks.curation import CurationRule
from pipelines.episodes.curation.content import language_of, refusal, repetition
from pipelines.episodes.curation.personal import find_personal_data
from pipelines.episodes.curation.secrets import find_secret

ALL = ("EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "PHONE_NUMBER", "CRYPTO")
AWS = "AKIA" + "IOSFODNN7EXAMPLX"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"use {AWS} please", "AWS Access Key"),
        ("token: " + "ghp_" + "a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8", "GitHub Token"),
        ("-----BEGIN RSA PRIVATE KEY-----", "Private Key"),
        ('password = "hunter2hunter2"', "Secret Keyword"),
        ("a table for two at eight, 2f6b0a1c-1111-4222-8333-944455566677", None),
        ("", None),
    ],
)
def test_secrets_are_found_and_ids_are_none(text: str, kind: str | None) -> None:
    assert find_secret(text) == kind


@pytest.mark.parametrize(
    ("text", "entity"),
    [
        ("write to ann@example.com", "EMAIL_ADDRESS"),
        ("card 4111 1111 1111 1111", "CREDIT_CARD"),
        ("card 4111 1111 1111 1112", None),  # its check digit is wrong
        ("DE89370400440532013000", "IBAN_CODE"),
        ("ping 10.1.2.3", "IP_ADDRESS"),
        ("call +49 30 901820", "PHONE_NUMBER"),
        ("a table for 4 at 19:30, Lee", None),
    ],
)
def test_personal_data_is_found_by_pattern_and_check_digits(text: str, entity: str | None) -> None:
    assert find_personal_data(text, ALL) == entity


@pytest.mark.slow
def test_looking_for_personal_data_loads_no_torch() -> None:
    code = (
        "import sys; from pipelines.episodes.curation.personal import find_personal_data as find;"
        "assert find('ann@example.com', ['EMAIL_ADDRESS']); assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)  # noqa: S603 our own


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


@pytest.mark.parametrize(
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
