from __future__ import annotations

import time
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import regex
from rewards.verifiers.check import Answer, Check
from tests.each_case import each_case


def grade(text: str, pattern: str, **config: Any) -> Check:
    check = regex.build({"pattern": pattern, **config})(Answer(text))
    assert isinstance(check, Check)
    return check


@each_case(
    ("text", "config", "value"),
    [
        ("id 42", {"pattern": r"\d+"}, 1.0),
        ("id", {"pattern": r"\d+"}, 0.0),
        ("42", {"pattern": r"\d+", "must": "match"}, 1.0),
        ("42\n", {"pattern": r"\d+", "must": "match"}, 0.0),
        ("42 or 43", {"pattern": r"\d+", "must": "match"}, 0.0),
        ("cat", {"pattern": "cat|catalogue", "must": "match"}, 1.0),
        ("catalogue", {"pattern": "cat|catalogue", "must": "match"}, 1.0),
        ("fine", {"pattern": "sorry", "must": "absent"}, 1.0),
        ("Sorry", {"pattern": "sorry", "must": "absent"}, 1.0),
        ("Sorry", {"pattern": "sorry", "must": "absent", "flags": ["ignore_case"]}, 0.0),
        ("a\nb", {"pattern": "^b$"}, 0.0),
        ("a\nb", {"pattern": "^b$", "flags": ["multi_line"]}, 1.0),
        ("a\nb", {"pattern": "a.b"}, 0.0),
        ("a\nb", {"pattern": "a.b", "flags": ["dot_all"]}, 1.0),
        ("\x00", {"pattern": "^$"}, 0.0),
        ("\u0664", {"pattern": r"\d"}, 0.0),
    ],
)
def test_a_pattern_is_found_is_the_whole_or_is_nowhere(text: str, config: dict[str, Any], value: float) -> None:
    check = regex.build(config)(Answer(text))
    assert isinstance(check, Check)
    assert (check.value, check.fault) == (value, "none" if value else "model")


def test_the_reason_says_what_was_found() -> None:
    assert grade("I am sorry", "sorr.", must="absent").reason == "it has 'sorry'"


def test_half_of_a_surrogate_pair_is_the_models_fault() -> None:
    check = grade("\ud800", "x", must="absent")
    assert (check.value, check.fault) == (0.0, "model")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*c", "^(a?){50}a{50}$"])
def test_any_pattern_takes_linear_time(pattern: str) -> None:
    started = time.process_time()
    grade("a" * 50_000 + "!", pattern)
    assert time.process_time() - started < 2.0


@each_case(
    ("config", "param", "says"),
    [
        ({}, "pattern", "required"),
        ({"pattern": ""}, "pattern", "at least 1"),
        ({"pattern": "("}, "pattern", "missing"),
        ({"pattern": "x)|(y", "flags": ["multi_line"]}, "pattern", "unexpected"),
        ({"pattern": "(?=a)"}, "pattern", "no lookaround"),
        ({"pattern": r"(a)\1"}, "pattern", "no lookaround"),
        ({"pattern": "(a{1000}){1000}"}, "pattern", "repetition"),
        ({"pattern": "a*"}, "pattern", "decides nothing"),
        ({"pattern": "(?s).*", "must": "match"}, "pattern", "decides nothing"),
        ({"pattern": "", "must": "absent"}, "pattern", "at least 1"),
        ({"pattern": "a", "must": "find"}, "must", "absent"),
        ({"pattern": "a", "flags": ["i"]}, "flags.0", "ignore_case"),
        ({"pattern": "a", "flag": []}, "flag", "does not exist"),
    ],
)
def test_a_wrong_config_is_refused_with_its_field(config: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidTask, match=says) as caught:
        regex.build(config)
    assert caught.value.param == param
