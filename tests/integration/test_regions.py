"""Real engines in two regions: versions arrive, a killed engine costs nothing, a region that was cut off catches up by one fold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.regions.__main__ import (
    check_ledger,
    make_policy,
    measure_cut,
    measure_kill,
    measure_version,
)
from tests.worlds.regions.fleet import RegionFleet, fleet, why_no_fleet
from tests.worlds.regions.net import Link, why_not

pytestmark = [
    pytest.mark.services,
    # Addresses inside of the namespaces.
    pytest.mark.allow_hosts(["127.0.0.1", "::1", "10.203.0.1", "10.203.0.2"]),
]

LINK = Link(round_trip_ms=20.0, rate_mbit=2.0, loss=0.0)
NUM_AWAY = 6
_MOST_TIMES = 3.0
"""The benchmark measures it on a quiet machine; here, much slower means that something waits that should not."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionFleet]:
    if (reason := why_not() or why_no_fleet()) is not None:
        pytest.skip(reason)
    base: Path = make_policy(tmp_path_factory.mktemp("policy") / "base", megabytes=1.0)
    with fleet(base, LINK) as running:
        yield running


def test_a_day_of_two_regions(world: RegionFleet) -> None:
    version = measure_version(world, LINK, seed=1)
    assert version["seconds"].keys() == {"near-1", "far-1", "far-2"}
    assert version["chunk_bytes_over_the_link_times_payload"] == 1.0, "two engines stand behind the cache"
    assert version["last_times_bound"] < _MOST_TIMES

    killed, first = measure_kill(world)
    assert first.ends == {"answered": killed["requests"]}
    assert killed["moved"] > 0, "the killed engine had work"

    cut, second = measure_cut(world, NUM_AWAY)
    assert cut["served_to_local_callers"] == {"far-1": ["v1"], "far-2": ["v1"]}, "what it had when the link went"
    assert second.ends == {"answered": len(second.ended)}, "the pool leaves the far engines out"
    assert cut["only_the_fold_was_fetched"]
    assert cut["chunk_bytes_over_the_link"] == cut["fold_bytes"] < cut["chain_bytes"]

    ledger = check_ledger(world, [*first.ids, *second.ids])
    assert ledger == {"answers": len(first.ids) + len(second.ids), "balanced": True, "problems": []}
