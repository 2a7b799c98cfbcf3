import random
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
import pytest

from contracts.errors import NotFound
from tests.unit.weights.examples import edge, refused
from weights.versions.manifest import NO_HISTORY, Manifest
from weights.versions.route import route, route_from


def among(edges: Iterable[Manifest], asked: list[int] | None = None) -> Callable[[int], list[Manifest]]:
    by_version = defaultdict(list)
    for each in edges:
        by_version[each.version].append(each)

    def edges_of(version: int) -> list[Manifest]:
        if asked is not None:
            asked.append(version)
        if version not in by_version:
            raise NotFound(f"no version {version}")
        return by_version[version]

    return edges_of


def ends(way: list[Manifest]) -> list[tuple[int | None, int]]:
    return [(each.base_version, each.version) for each in way]


def chain(length: int, anchors: Iterable[int] = (0,)) -> list[Manifest]:
    """Steps of 10 bytes with history, full copies of 1000."""
    edges = [edge(0, None, num_bytes=1000, history_after=NO_HISTORY)]
    history = NO_HISTORY
    for version in range(1, length):
        after = NO_HISTORY if version in anchors else f"h{version}"
        edges.append(edge(version, version - 1, version - 1, history=history, history_after=after))
        if version in anchors:
            edges.append(edge(version, None, version - 1, num_bytes=1000, history_after=NO_HISTORY))
        history = after
    return edges


def test_a_newcomer_takes_the_last_full_copy_and_the_steps_after_it() -> None:
    way = route(among(chain(60, (25, 50))), 53, {})
    assert ends(way) == [(None, 50), (50, 51), (51, 52), (52, 53)]


def test_what_is_held_needs_no_way() -> None:
    assert route(among(chain(3)), 2, {2: None}) == []


def test_a_replica_takes_the_steps_and_asks_for_nothing_else() -> None:
    asked: list[int] = []
    assert ends(route(among(chain(60, (25, 50)), asked), 53, {51: "h51"})) == [(51, 52), (52, 53)]
    assert asked == [53, 52]


def test_a_step_coded_with_history_needs_exactly_that() -> None:
    edges = [*chain(10), edge(9, 6, 8, num_bytes=500), edge(9, 5, 8, num_bytes=800)]
    assert ends(route(among(edges), 9, {6: "h6"})) == [(6, 7), (7, 8), (8, 9)]
    assert ends(route(among(edges), 9, {6: "other"})) == [(6, 9)]
    assert ends(route(among(edges), 9, {6: None})) == [(6, 9)]
    assert ends(route(among(edges), 9, {5: None})) == [(5, 9)]


def test_who_came_by_a_fold_cannot_take_a_step_with_history_until_a_cycle_begins() -> None:
    edges = [*chain(10, (7,)), edge(5, 1, 4)]
    assert ends(route(among(edges), 5, {1: "h1"})) == [(1, 5)]
    # Over the fold it were fewer bytes, but the step from 5 is coded with what a fold does not tell.
    assert ends(route(among(edges), 6, {1: "h1"})) == [(number, number + 1) for number in range(1, 6)]
    # An empty history anybody can have.
    assert ends(route(among(edges), 9, {7: "something"})) == [(7, 8), (8, 9)]
    assert ends(route(among(edges), 9, {7: None})) == [(7, 8), (8, 9)]


@pytest.mark.parametrize(("num_bytes", "expected"), [(29, [(3, 6)]), (31, [(3, 4), (4, 5), (5, 6)])])
def test_the_way_of_fewest_bytes_is_taken(num_bytes: int, expected: list[tuple[int, int]]) -> None:
    edges = [*chain(7), edge(6, 3, 5, num_bytes=num_bytes)]
    assert ends(route(among(edges), 6, {3: "h3"})) == expected


def test_of_equal_ways_the_one_with_fewer_edges_is_taken() -> None:
    assert ends(route(among([*chain(7), edge(6, 3, 5, num_bytes=30)]), 6, {3: "h3"})) == [(3, 6)]


def test_of_several_held_the_nearest_is_taken() -> None:
    assert ends(route(among(chain(9)), 8, {2: "h2", 6: "h6"})) == [(6, 7), (7, 8)]
    assert ends(route(among(chain(9)), 5, {2: "h2", 6: "h6"})) == [(2, 3), (3, 4), (4, 5)]


def test_whoever_holds_something_gets_a_full_copy_only_if_nothing_else_leads_there() -> None:
    edges = chain(60, (50,))
    dear = [msgspec.structs.replace(each, chunks=each.chunks * 300) if each.kind == "step" else each for each in edges]
    assert ends(route(among(dear), 51, {49: "h49"})) == [(49, 50), (50, 51)]
    assert ends(route(among(dear), 50, {49: "unknown"})) == [(None, 50)]
    assert ends(route(among(edges), 3, {7: "h7"})) == [(None, 0), (0, 1), (1, 2), (2, 3)]
    assert route_from(among(dear), 50, {49: "unknown"}) is None
    assert route_from(among(edges), 3, {7: "h7"}) is None


def test_below_what_is_held_nothing_is_asked_before_a_full_copy_is_needed() -> None:
    asked: list[int] = []
    assert route_from(among(chain(60), asked), 59, {50: "unknown"}) is None
    assert min(asked) == 50


def test_branches_are_told_apart() -> None:
    edges = [
        *chain(6),
        edge(6, 2, 2, history="h2", history_after="b6"),
        edge(7, 6, 6, history="b6", history_after="b7"),
    ]
    assert ends(route(among(edges), 7, {2: "h2"})) == [(2, 6), (6, 7)]
    assert ends(route(among(edges), 7, {5: "h5"})) == [(None, 0), (0, 1), (1, 2), (2, 6), (6, 7)]


def test_a_version_that_does_not_exist_is_not_found() -> None:
    for held in ({}, {1: "h1"}):
        with pytest.raises(NotFound, match="no version 9"):
            route(among(chain(3)), 9, held)


def test_where_no_way_leads_the_gone_are_named() -> None:
    edges = [each for each in chain(6) if each.version != 2]
    with refused("broken_chain", r"version 5: versions \[2\] are gone"):
        route(among(edges), 5, {})
    assert ends(route(among(edges), 5, {3: "h3"})) == [(3, 4), (4, 5)]
    with refused("broken_chain", "no full copy"):
        route(lambda version: among(chain(6))(version) if version else [], 5, {})


@pytest.mark.parametrize(
    "bad",
    [edge(5, 5, 4), edge(5, 7, 4), edge(5, 5, 5), edge(5, None, 5), edge(5, 4, 9), edge(5, -1, 4), edge(6, 5, 5)],
    ids=lambda bad: f"{bad.base_version}-{bad.version}-{bad.parent}",
)
def test_edges_that_do_not_lead_upwards_are_refused(bad: Manifest) -> None:
    def edges_of(version: int) -> list[Manifest]:
        return [bad] if version == 5 else among(chain(5))(version)

    for held in ({}, {4: "h4"}):
        with refused("broken_chain"):
            route(edges_of, 5, held)


def by_trying_all(edges_of: Callable[[int], list[Manifest]], version: int, held: dict[int, str | None]) -> int | None:
    """Bytes of the cheapest way without a full copy, by walking forwards through every state there is."""
    cost: dict[tuple[int, str | None], int] = dict.fromkeys(held.items(), 0)
    for number in range(1, version + 1):
        for each in edges_of(number):
            for (at, history), so_far in list(cost.items()):
                fits = each.history in {None, NO_HISTORY, history}
                if at == each.base_version and fits:
                    state = (number, each.history_after)
                    cost[state] = min(cost.get(state, 10**9), so_far + each.payload_bytes)
    return min((so_far for (at, _), so_far in cost.items() if at == version), default=None)


def test_random_graphs_agree_with_trying_all_ways() -> None:
    dice = random.Random(5)
    num_found = 0
    for _ in range(150):
        histories = [None, NO_HISTORY, "a", "b"]
        edges = [edge(0, None, num_bytes=500)]
        for version in range(1, 9):
            edges += [
                edge(version, base, version - 1, num_bytes=dice.randint(1, 40), history=dice.choice(histories),
                     history_after=dice.choice(histories))
                for base in dice.sample(range(version), dice.randint(1, min(version, 3)))
            ]  # fmt: skip
        held: dict[int, str | None] = {number: dice.choice(histories) for number in dice.sample(range(8), 2)}
        found = route_from(among(edges), 8, held)
        expected = by_trying_all(among(edges), 8, held)
        assert (None if found is None else sum(each.payload_bytes for each in found)) == expected
        num_found += found is not None
    assert 30 < num_found < 150
