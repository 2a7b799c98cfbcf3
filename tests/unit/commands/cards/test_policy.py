from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.cards.policy import CardUse, Demand, decide, dwell_seconds

MOVE = 60.0
DWELL = dwell_seconds(MOVE)
QUIET = Demand(load=0.5, peak=0.6, slope=0.0, backlog=1000, live_age=60.0)

Day = list[tuple[float, float, int]]
"""Load, slope and backlog, one after the other, 30 s apart."""
days = st.lists(st.tuples(st.floats(0, 12), st.floats(-0.01, 0.01), st.integers(0, 5000)), min_size=20, max_size=200)


def split(users: int, training: int) -> dict[int, CardUse]:
    return {number: "users" if number < users else "training" for number in range(users + training)}


def lived(day: Day, cards: dict[int, CardUse], floor: int) -> list[tuple[float, int, CardUse]]:
    """The moves of a day as (when, card, to), each taking `MOVE` seconds."""
    moves, moved_at = list[tuple[float, int, CardUse]](), float("-inf")
    for number, (load, slope, backlog) in enumerate(day):
        now = 30.0 * number
        if now < moved_at:
            continue
        demand = Demand(load, load, slope, backlog, 60.0)
        found = decide(cards, demand, now, floor=floor, moved_at=moved_at, move_seconds=MOVE)
        if found.card is not None:
            cards[found.card] = found.to
            moved_at = now + MOVE
            moves.append((now, found.card, found.to))
        assert sum(use == "users" for use in cards.values()) >= floor
    return moves


@given(day=days, users=st.integers(1, 8), training=st.integers(0, 8), data=st.data())
def test_users_never_have_fewer_replicas_than_the_floor(
    day: Day, users: int, training: int, data: st.DataObject
) -> None:
    lived(day, split(users, training), data.draw(st.integers(1, users)))


@given(day=days, users=st.integers(1, 8), training=st.integers(1, 8))
def test_users_lose_no_card_within_a_dwell_of_a_move(day: Day, users: int, training: int) -> None:
    moves = lived(day, split(users, training), 1)
    assert all(later[0] - (earlier[0] + MOVE) >= DWELL for earlier, later in pairwise(moves) if later[2] == "training")


def test_users_get_a_card_within_a_dwell() -> None:
    found = decide(split(3, 2), QUIET._replace(peak=5.0), 0.0, floor=1, moved_at=-1.0, move_seconds=MOVE)
    assert (found.card, found.to) == (4, "users")
    quiet = decide(split(3, 2), QUIET, 0.0, floor=1, moved_at=-1.0, move_seconds=MOVE)
    assert quiet.card is None
    assert "too young" in quiet.why


@given(load=st.floats(0, 12), backlog=st.integers(0, 5000), users=st.integers(1, 8), training=st.integers(0, 8))
def test_demand_that_stays_moves_cards_one_way_only(load: float, backlog: int, users: int, training: int) -> None:
    moves = lived([(load, 0.0, backlog)] * 600, split(users, training), 1)
    assert len({to for _, _, to in moves}) <= 1
    assert len({card for _, card, _ in moves}) == len(moves)


def test_a_dwell_is_more_than_ten_moves() -> None:
    assert dwell_seconds(120.0) == 1200.0
    assert dwell_seconds(0.1) > 60.0


@pytest.mark.parametrize(
    ("demand", "to", "says"),
    [
        (QUIET, "training", "2 replicas carry it"),
        (QUIET._replace(backlog=0), None, "no work"),
        (QUIET._replace(peak=1.95), None, "would be more than"),
        (QUIET._replace(peak=2.95), "users", "above 98%"),
        (QUIET._replace(slope=0.01), "users", "above 98%"),
        (QUIET._replace(load=1.5, peak=1.91), None, "would be more than 95%"),
        (QUIET._replace(load=1.5, peak=1.91, live_age=1e6), "training", "2 replicas carry it"),
    ],
)
def test_a_decision_says_why(demand: Demand, to: str | None, says: str) -> None:
    found = decide(split(3, 2), demand, 0.0, floor=1, moved_at=-1e6, move_seconds=MOVE)
    assert (found.to if found.card is not None else None) == to
    assert says in found.why


def test_who_has_nothing_left_to_give_says_so() -> None:
    found = decide(split(3, 0), QUIET._replace(peak=5.0), 0.0, floor=1, moved_at=-1e6, move_seconds=MOVE)
    assert found.card is None
    assert "no other is left" in found.why
