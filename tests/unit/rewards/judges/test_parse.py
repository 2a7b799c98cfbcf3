from __future__ import annotations

import math

import pytest

from rewards.judges.parse import ReplyToken, expected_level, parse_verdict
from tests.each_case import each_case

LEVELS = ("wrong", "partly right", "right")


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ('{"reason": "r", "level": "right"}', 1.0),
        ('{"reason": "r", "level": " Partly Right "}', 0.5),
        ('{"reason": "r", "level": 0}', 0.0),
        ('```json\n{"reason": "r", "level": "right"}\n```', 1.0),
        ('<think>maybe {"level": "wrong"}</think>\n{"reason": "r", "level": "right"}', 1.0),
        ('Here: {"reason": "r", "level": "right"} Done: {"level": "right"}', 1.0),
        ('{"reason": "it says </think> and {\\"level\\": \\"right\\"}", "level": "wrong"}', 0.0),
    ],
)
def test_a_verdict(content: str, value: float) -> None:
    found = parse_verdict(content, LEVELS)
    assert found is not None
    assert (found.value, found.level) == (value, LEVELS[round(value * 2)])


@each_case(
    "content",
    [
        "", "right", "the level is right", "{", "[]", '{"level": "great"}', '{"level": 3}', '{"level": -1}',
        '{"level": true}', '{"level": null}', '{"level": 1.0}', '{"level": ["right"]}', '{"reason": "right"}',
        '{"reason": "r", "level": "right"',
        '{"level": "wrong"} {"level": "right"}',
        'The answer said {"level": "right"}. {"reason": "r", "level": "wrong"}',
        '{"level": "wrong", "level": "right"}',
        '{"verdict": {"level": "right"}}', "[" * 100_000, "{" * 2000,
    ],
)  # fmt: skip
def test_what_is_not_exactly_one_verdict_is_none(content: str) -> None:
    assert parse_verdict(content, LEVELS) is None


def spelled(*tokens: tuple[str, dict[str, float]]) -> list[ReplyToken]:
    """Tokens with the probabilities of their alternatives."""
    return [ReplyToken(text, {name: math.log(p) for name, p in found.items()}) for text, found in tokens]


def test_levels_are_weighed_by_their_probabilities() -> None:
    tokens = spelled(
        ('{"reason": "r", "level": "', {}),
        ("right", {"right": 0.6, "wrong": 0.1, "part": 0.2, "x": 0.1}),
        ('"}', {}),
    )
    assert expected_level(tokens, LEVELS) == pytest.approx((0.6 * 1 + 0.2 * 0.5) / 0.9)
    found = parse_verdict('{"reason": "r", "level": "right"}', LEVELS, tokens)
    assert found is not None
    assert found.value == pytest.approx(0.7 / 0.9)
    assert found.level == "right"


def test_levels_with_a_common_start_are_told_apart_by_the_token_that_differs() -> None:
    tokens = spelled(
        ('{"level": "le', {'{"level": "le': 1.0}),
        ("vel ", {"vel ": 0.9, "ft": 0.1}),
        ("2", {"2": 0.75, "1": 0.25}),
        ('"}', {}),
    )
    assert expected_level(tokens, ("level 1", "level 2")) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        spelled(("right", {"right": 1.0})),
        spelled(('{"level": "', {}), ("right", {})),
        spelled(('{"level": "', {}), ("right", {"right": 0.3, "zz": 0.7})),
    ],
)
def test_tokens_that_do_not_tell_leave_the_level_as_it_was_named(tokens: list[ReplyToken]) -> None:
    assert expected_level(tokens, LEVELS) is None
    found = parse_verdict('{"level": "right"}', LEVELS, tokens)
    assert found is not None
    assert found.value == 1.0
