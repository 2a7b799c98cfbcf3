from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import Overloaded
from services.engine.active_requests import Bounds, admit, retry_seconds
from services.engine.settings import EngineSettings
from tests.worlds.engines.flood import flood, overflow

BOUNDS = Bounds(num_requests=4, num_tokens=100)


def is_taken(open_tokens: list[int], num_tokens: int, *, background: bool = False, bounds: Bounds = BOUNDS) -> bool:
    try:
        admit(bounds, open_tokens, num_tokens, (), 0.0, background=background)
    except Overloaded:
        return False
    return True


def test_a_place_is_a_request_and_its_tokens() -> None:
    assert is_taken([1, 1, 1], 1)
    assert not is_taken([1, 1, 1, 1], 1)
    assert is_taken([50], 50)
    assert not is_taken([50], 51)


def test_a_refusal_is_a_429_that_says_when_to_come_again() -> None:
    with pytest.raises(Overloaded, match=r"4 requests with up to 40 tokens open, .* try again in 4 s") as refused:
        admit(BOUNDS, [10] * 4, 1, [0.0, 1.0], 20.0, background=False)
    assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "4"})
    assert refused.value.as_openai()["error"] == {
        "message": refused.value.message,
        "type": "invalid_request_error",
        "param": None,
        "code": "engine_overloaded",
    }


def test_a_request_that_is_alone_always_comes_in() -> None:
    assert is_taken([], 1000)
    assert is_taken([], 1000, background=True)
    assert not is_taken([1000], 1)


def test_what_is_not_a_users_fills_half() -> None:
    assert is_taken([1], 1, background=True)
    assert not is_taken([1, 1], 1, background=True)
    assert is_taken([1, 1], 1)
    assert not is_taken([25], 26, background=True)
    assert is_taken([25], 26)


@given(
    asked=st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=40),
    bounds=st.builds(Bounds, st.integers(1, 8), st.integers(1, 200)),
)
def test_the_bounds_hold_whatever_comes(asked: list[tuple[int, bool]], bounds: Bounds) -> None:
    taken: list[int] = []
    for num_tokens, background in asked:
        if is_taken(taken, num_tokens, background=background, bounds=bounds):
            taken.append(num_tokens)
    assert len(taken) <= bounds.num_requests
    assert sum(taken) <= bounds.num_tokens or len(taken) == 1


def test_the_wait_is_that_of_a_tenth_at_the_pace_of_now() -> None:
    assert retry_seconds(100, [float(second) for second in range(10)], 10.0) == 10
    assert retry_seconds(100, [n / 100 for n in range(100)], 1.0) == 1
    assert retry_seconds(10_000, [0.0, 1.0], 2.0) == 30
    assert retry_seconds(100, [], 5.0) == 1


def test_a_flood_is_refused_before_it_waits_and_leaves_room_for_users() -> None:
    assert overflow() is None


def test_a_flood_is_bounded_in_tokens_too() -> None:
    flooded = flood(EngineSettings(max_open_tokens=80))  # ten requests of 4 + 4
    assert (flooded.rollouts[0], flooded.users[0]) == (5, 5)
    assert flooded.users[429] == flooded.rollouts[429] == 35
    assert flooded.finished == {200: 10}


@pytest.mark.parametrize("wrong", [{"max_open_requests": 0}, {"max_open_tokens": 0}])
def test_no_bound_is_below_one(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        EngineSettings.model_validate(wrong)
