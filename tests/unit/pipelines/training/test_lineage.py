"""Ancestors in few numbers: equal to the plain list of them, whatever tree they come from."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.known.lineage import MOST_LEFT, MOST_RUNS, Lineage, VersionTree, left_behind, left_versions

trees = st.lists(st.integers(0, 40), min_size=1, max_size=40)
"""Of each version from 1 on: how many versions before it its parent lies, as far as there are any."""


def grown(drawn: list[int]) -> tuple[dict[int, int], dict[int, list[int]], dict[int, Lineage]]:
    """Parents, plain lineages and short ones, of every version."""
    parents, plain, short = {}, {0: [0]}, {0: Lineage.of([0])}
    for version, back in enumerate(drawn, start=1):
        parent = parents[version] = max(version - 1 - back, 0)
        plain[version] = [version, *plain[parent]]
        short[version] = short[parent].child(version)
    return parents, plain, short


@given(trees)
def test_it_is_the_plain_list(drawn: list[int]) -> None:
    _, plain, short = grown(drawn)
    for version, numbers in plain.items():
        lineage = short[version]
        assert list(lineage) == numbers
        assert lineage == Lineage.of(numbers) == Lineage.of(msgspec.json.decode(msgspec.json.encode(lineage.to_json())))
        assert ([lineage[at] for at in range(len(numbers))], lineage[-1]) == (numbers, 0)
        for other in plain:
            assert (other in lineage) == (other in numbers)
            assert lineage.depth(other) == (numbers.index(other) if other in numbers else None)
            assert lineage.newest_shared(short[other]) == max(set(numbers) & set(plain[other]))


@given(trees)
def test_a_tree_knows_what_was_left_and_how_far_it_is(drawn: list[int]) -> None:
    parents, plain, short = grown(drawn)
    newest, before = len(drawn), len(drawn) - 1
    tree = VersionTree(short[newest], left_versions(parents, short[newest]))
    for version, numbers in plain.items():
        shared = max(set(numbers) & set(plain[newest]))
        assert tree.exists(version)
        assert tree.distance(version) == numbers.index(shared) + plain[newest].index(shared)
    gone = {version: parents[version] for version in plain[before] if version not in plain[newest]}
    left = left_behind(short[before], short[newest])
    assert left_versions(left, short[newest]) == gone


@pytest.mark.slow
def test_a_life_with_many_rollbacks_stays_small() -> None:
    lineage, left = Lineage.of([0]), dict[int, int]()
    for version in range(1, 12_000):
        if version % 8 == 0:
            now = back(lineage, 2)
            left |= left_behind(lineage, now)
            lineage = now
        lineage = lineage.child(version)
    assert len(left) == 2 * (12_000 // 8 - 1)
    assert len(lineage.to_json()) <= 2 * MOST_RUNS + 1
    assert (lineage[0], lineage.depth(lineage[5]), 17 in lineage) == (11_999, 5, True)
    assert lineage.exact_from > 0
    assert VersionTree(lineage, left).distance(6) > 1_000, "left so long ago that it counts as an ancestor"


def test_of_the_versions_that_were_left_the_newest_are_known() -> None:
    parents = {version: version - 1 for version in range(1, 2 * MOST_LEFT)} | {MOST_LEFT: 0}
    tree = VersionTree([2 * MOST_LEFT, 0], left_versions(parents, [2 * MOST_LEFT, 0]))
    assert not tree.exists(MOST_LEFT - 1)
    newest = 2 * MOST_LEFT - 1
    assert tree.distance(newest) == MOST_LEFT + 1, "its branch is followed down to where it began"
    del parents[MOST_LEFT]
    tree = VersionTree([0], left_versions(parents, [0]))
    assert tree.distance(newest) == MOST_LEFT, "where it began is forgotten: as far as known"


def back(lineage: Lineage, versions: int) -> Lineage:
    """The lineage of an ancestor."""
    newest = lineage[versions]
    return Lineage([(min(one, newest), other) for one, other in lineage._runs if other <= newest])
