from typing import Any, NamedTuple

import pytest
from sqlalchemy import event

from contracts.assignments import CANDIDATE, LIVE
from runtime.settings import Settings
from services.dashboard.averages import quantile
from services.dashboard.live.charts import NUM_BUCKETS, legs, newest_live, rates, step_buckets, window_start
from services.dashboard.live.queries import BUCKET_SECONDS, WINDOW_SECONDS, SampleTimes, read_learned, read_rates
from services.dashboard.live.traffic import PartitionLag, Traffic, lags
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import reading
from tests.worlds.dashboard.seed import NUM_VERSIONS, STARTED, WAITING


class Change(NamedTuple):
    arm: str
    version: int | None
    at: float


def test_the_window_is_made_of_whole_buckets() -> None:
    start = window_start(1009.9)
    assert start == 1000 - WINDOW_SECONDS
    assert window_start(1000.0) == start


def test_counts_become_rates_from_the_first_event_on() -> None:
    columns = rates({"generations": {NUM_BUCKETS - 2: 25, NUM_BUCKETS: 3}, "steps": {NUM_BUCKETS - 1: 5}}, 0.0)
    assert columns["generations"] == [2.5, 0.0]
    assert columns["steps"] == [0.0, 0.5]
    assert columns["signals"] == [0.0, 0.0]
    assert columns["at"] == [WINDOW_SECONDS - BUCKET_SECONDS, WINDOW_SECONDS]
    assert rates({}, 0.0)["at"] == []


def test_steps_before_the_window_are_left_out() -> None:
    assert step_buckets([99.0, 100.0, 109.9, 110.0], 100.0) == {0: 2, 1: 1}


def test_rates_come_from_the_tables(seeded: Settings) -> None:
    start = window_start(STARTED)
    with reading(seeded) as connection:
        buckets = read_rates(connection, start)
    assert sum(buckets["generations"].values()) == 600
    assert 0 < sum(buckets["signals"].values()) < sum(buckets["experiences"].values()) < 600


def test_the_newest_versions_that_went_live_and_when_first() -> None:
    moves = [(LIVE, 3, 50.0), (CANDIDATE, 9, 45.0), (LIVE, 5, 40.0), (LIVE, 4, 30.0), (LIVE, 3, 20.0), (LIVE, 0, 0.0)]
    assert newest_live([Change(*move) for move in moves]) == {3: 20.0, 5: 40.0, 4: 30.0}


def test_the_legs_of_the_way() -> None:
    samples = [SampleTimes(4, 0.0, 1.0, 2.0, 3.0, 7.0), SampleTimes(4, 0.0, 3.0, None, None, 9.0)]
    found = {leg.name: (leg.number, leg.p50, leg.p95) for leg in legs(samples, {4: 10.0}, {4: 16.0})}
    assert found == {
        "joined": (2, 1.0, 3.0),
        "scored": (1, 1.0, 1.0),
        "trained": (1, 4.0, 4.0),
        "published": (2, 1.0, 3.0),
        "live": (1, 6.0, 6.0),
        "total": (1, 14.0, 14.0),
    }


def test_no_sample_means_no_figure_and_clocks_never_give_negative_ones() -> None:
    assert all((leg.number, leg.p50, leg.p95) == (0, None, None) for leg in legs([], {}, {}))
    backwards = legs([SampleTimes(1, 5.0, 4.0, None, None, None)], {}, {})[0]
    assert (backwards.p50, backwards.p95) == (0.0, 0.0)


@pytest.mark.parametrize(("share", "value"), [(0.5, 10), (0.95, 19), (1.0, 20), (0.0, 1)])
def test_a_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile(list(range(1, 21)), share) == value


def test_samples_that_live_versions_learned_are_found_by_the_index(seeded: Settings) -> None:
    with reading(seeded) as connection:
        learned = read_learned(connection, [NUM_VERSIONS - 1])
        assert read_learned(connection, []) == []
        plans: list[str] = []

        @event.listens_for(connection, "before_cursor_execute")
        def explain(_c: object, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
            # The cursor is the statement's own: it runs the plan first, then the statement.
            plans.extend(row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))

        read_learned(connection, [NUM_VERSIONS - 1])
    assert learned
    assert {sample.version for sample in learned} == {NUM_VERSIONS - 1}
    assert all(sample.signal_at and sample.scored_at and sample.trained_at for sample in learned)
    assert all(sample.created_at < sample.joined_at for sample in learned)
    scans = [plan for plan in plans if plan.startswith("SCAN") and not plan.startswith(("SCAN anon", "SCAN (sub"))]
    assert plans
    assert scans == []


def test_the_page_has_rates_freshness_and_lags(seeded: Settings, reader_of: ReaderOf) -> None:
    state = reader_of(seeded).read(STARTED)
    assert len(state.rates["at"]) == len(state.rates["generations"]) > 20
    assert {leg.name: leg.number > 0 for leg in state.freshness} == dict.fromkeys(
        ("joined", "scored", "trained", "published", "live", "total"), True
    )
    waits = {(lag.group, lag.topic): lag.num_waiting for lag in state.lags}
    assert waits == {
        ("episodes", "generations"): WAITING["generations"],
        ("episodes", "signals"): WAITING["signals"],
        ("episodes", "outcomes"): 0,
        ("rewards", "episodes"): WAITING["episodes"],
        ("training", "experiences"): None,
    }
    assert {arm.arm: arm.version for arm in state.arms} == {"live": NUM_VERSIONS - 1, "candidate": NUM_VERSIONS}


def test_lags_keep_their_partitions() -> None:
    parts = [PartitionLag(0, 5, 3, 1.0), PartitionLag(1, 0, 0, None)]
    (lag,) = lags({"signals": Traffic(1, 2, 1.0, parts)})
    assert (lag.group, lag.num_waiting, lag.oldest_at, lag.partitions) == ("episodes", 2, 1.0, parts)
