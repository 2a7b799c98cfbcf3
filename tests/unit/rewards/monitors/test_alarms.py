from __future__ import annotations

from rewards.monitors.alarms import NUM_METRICS, alarms_of, worst_cluster
from rewards.monitors.rules import RULES
from rewards.sums import Sums


def shares(num: int, hits: float) -> Sums:
    return Sums(num, hits, hits)


def test_a_step_is_seen_against_the_versions_before() -> None:
    versions = {0: {("", "asks"): shares(2000, 40)}, 1: {("", "asks"): shares(500, 100)}}
    [found] = alarms_of(versions, 1, ())
    assert (found.name, found.version, found.cluster) == ("asks", 1, "")
    assert found.details["versions"] == [0, 0]
    assert (found.details["mean"], found.details["reference"]) == (0.2, 0.02)
    assert (found.details["test"], found.details["line"]) == ("step", None)


def test_fewer_bad_habits_are_no_alarm() -> None:
    assert alarms_of({0: {("", "asks"): shares(2000, 400)}, 1: {("", "asks"): shares(2000, 0)}}, 1, ()) == []


def test_a_creep_of_small_steps_is_seen_against_the_oldest_versions() -> None:
    versions = {number: {("", "asks"): shares(4000, 40 + 40 * number)} for number in range(10)}
    found = {number: alarms_of(versions, number, ()) for number in range(10)}
    first = next(number for number in range(10) if found[number])
    assert first < 9
    assert found[first][0].details["test"] == "creep"
    assert found[first][0].details["versions"] == [0, 0]


def test_a_version_with_an_alarm_is_no_reference() -> None:
    versions = {0: shares(3000, 30), 1: shares(3000, 600), 2: shares(3000, 600)}
    sums = {number: {("", "asks"): held} for number, held in versions.items()}
    assert alarms_of(sums, 2, ())[0].details["test"] == "creep"
    [found] = alarms_of(sums, 2, {("asks", 1, "")})
    assert (found.details["test"], found.details["versions"]) == ("step", [0, 0])


def test_an_alarm_is_raised_once() -> None:
    versions = {0: {("", "asks"): shares(2000, 40)}, 1: {("", "asks"): shares(500, 100)}}
    assert alarms_of(versions, 1, {("asks", 1, "")}) == []


def test_lines_need_no_earlier_version() -> None:
    versions = {0: {("", "tampers"): shares(500, 40), ("", "null"): shares(500, 40), ("", "asks"): shares(500, 400)}}
    found = alarms_of(versions, 0, ())
    assert [(item.name, item.details["test"], item.details["line"]) for item in found] == [
        ("tampers", "line", 0.02),
        ("null", "line", 0.01),
    ]


def test_length_may_neither_rise_nor_fall() -> None:
    for mean in (3.0, 5.0):
        versions = {
            0: {("", "length"): Sums(1000, 4000.0, 16_500.0)},
            1: {("", "length"): Sums(500, 500 * mean, 500 * (mean**2 + 0.5))},
        }
        assert [item.name for item in alarms_of(versions, 1, ())] == ["length"]


def test_a_share_of_sizes_may_not_fall_either() -> None:
    versions = {0: {("", "under_256"): shares(1000, 900)}, 1: {("", "under_256"): shares(400, 200)}}
    [found] = alarms_of(versions, 1, ())
    assert found.details["test"] == "step down"


def test_a_component_may_rise_but_not_fall() -> None:
    def changed(to: float) -> int:
        after = Sums(500, 500 * to, 500 * to)
        return len(alarms_of({0: {("", "score:x"): Sums(1000, 700, 700)}, 1: {("", "score:x"): after}}, 1, ()))

    assert (changed(0.95), changed(0.4)) == (0, 1)


def test_a_cluster_needs_stronger_evidence_than_all_prompts_together() -> None:
    def first_alarm(cluster: str) -> int:
        old, place = shares(1000, 20), (cluster, "asks")
        looks = (num for num in range(9, 900) if alarms_of({0: {place: old}, 1: {place: shares(num, num / 4)}}, 1, ()))
        return next(looks)

    assert first_alarm("c") > first_alarm("")


def test_the_worst_cluster_is_one_with_enough_samples() -> None:
    version = {("", "null"): shares(500, 5), ("a", "null"): shares(3, 3), ("b", "null"): shares(200, 4)}
    found = worst_cluster(version, "null", 100)
    assert found is not None
    assert found[0] == "b"
    assert worst_cluster(version, "null", 1000) is None


def test_the_tests_that_are_paid_for_are_as_many_as_there_are() -> None:
    assert len(RULES) + 20 <= NUM_METRICS
    assert all(rule.line is None or not rule.falls for rule in RULES.values())
