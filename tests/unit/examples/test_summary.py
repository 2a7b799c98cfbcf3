from __future__ import annotations

import pytest

from examples.reservations.summary import freshness, percentile

CLIENTS = [
    {"kind": "generation", "key": "a", "version": 0, "at": 1.0},
    {"kind": "signal", "key": "a", "id": "1", "positive": False, "at": 2.0},
    {"kind": "generation", "key": "b", "version": 1, "at": 10.0},
    {"kind": "signal", "key": "b", "id": "2", "positive": True, "at": 11.0},
    {"kind": "generation", "key": "c", "version": 3, "at": 20.0},
]


def test_freshness_counts_until_the_first_answer_of_a_version_that_descends_from_the_lesson() -> None:
    parents = {0: None, 1: 0, 2: 1, 3: 1}
    assert freshness(CLIENTS, {"1": 1, "2": 3}, parents) == [8.0, 9.0]
    assert freshness(CLIENTS, {"1": 1, "2": 2}, parents) == [8.0], "v3 does not descend from v2"
    assert freshness(CLIENTS, {"1": 1, "2": 2}, parents, [(30.0, 2)]) == [8.0, 19.0]
    assert freshness(CLIENTS, {}, parents) == []
    unknown = {"kind": "generation", "key": "d", "version": None, "at": 12.0}
    assert freshness([*CLIENTS, unknown], {"1": 1, "2": 3}, parents) == [8.0, 9.0], "nobody can tell what made it"


def test_answers_that_were_given_before_a_signal_do_not_count() -> None:
    clients = [*CLIENTS, {"kind": "signal", "key": "c", "id": "3", "positive": True, "at": 21.0}]
    parents = {0: None, 1: 0, 3: 1}
    assert freshness(clients, {"3": 3}, parents) == []
    assert freshness(clients, {"3": 3}, parents, [(25.0, 3)]) == [4.0]


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 2.0), (0.95, 4.0), (0.01, 1.0)])
def test_percentiles_are_nearest_ranks(share: float, wanted: float) -> None:
    assert percentile([3.0, 1.0, 4.0, 2.0], share) == wanted
    assert percentile([], share) is None
