from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from sqlalchemy import select
from structlog.testing import capture_logs

from contracts.tables import alarm, behaviour
from rewards.monitors.rules import BY_CLUSTER, SHARES
from rewards.monitors.watch import LOOK_SECONDS, OTHER, RINGS_SECONDS, Monitors
from rewards.repository import add_behaviour, behaviour_since
from rewards.rubric import RewardVerdict
from rewards.sums import Sums
from runtime.database import Database
from tests.fakes import BOOKING_TASK
from tests.unit.rewards.monitors.test_features import noted

NULL = RewardVerdict(None, "unscored", "infra")


def monitors() -> Monitors:
    return Monitors({"booking": BOOKING_TASK})


def serve(database: Database, watching: Monitors, now: float, *samples: Any) -> list[Any]:
    """Note, look, and return the alarms there are."""
    with database.transaction() as connection:
        watching.note(connection, samples)
        watching.tick(connection, now)
        return list(connection.execute(select(alarm).order_by(alarm.c.version, alarm.c.name, alarm.c.cluster)))


def sums_of(database: Database, version: int = 1) -> dict[tuple[str, str], Sums]:
    with database.snapshot() as connection:
        return behaviour_since(connection, "booking", 0)[version]


def test_batches_add_up(database: Database) -> None:
    watching = monitors()
    serve(database, watching, 0.0, noted("Sorry."), noted("No."))
    serve(database, watching, 0.0, noted("Sorry."), noted("Really?", verdict=NULL, cluster="c"))
    found = sums_of(database)
    assert found["", "apologises"] == Sums(4, 2.0, 2.0)
    assert found["", "null"] == Sums(4, 1.0, 1.0)
    assert found["", "reward"].num == 3
    assert {metric: held for (cluster, metric), held in found.items() if cluster == "c"} == {
        "null": Sums(1, 1.0, 1.0), "asks": Sums(1, 1.0, 1.0), "model_fault": Sums(1), "invalid_tool_call": Sums(1),
    }  # fmt: skip


def test_every_share_has_a_row_even_if_it_was_never_seen(database: Database) -> None:
    serve(database, monitors(), 0.0, noted(cluster="c"))
    found = sums_of(database)
    assert {metric for cluster, metric in found if not cluster} >= set(SHARES)
    assert {metric for cluster, metric in found if cluster == "c"} == set(BY_CLUSTER)
    assert all(found["", metric].num == 1 for metric in SHARES)


def test_only_what_users_asked_counts(database: Database) -> None:
    others = [noted(purpose=purpose) for purpose in ("rollout", "sentinel", "shadow")]
    serve(database, monitors(), 0.0, *others, noted(version=-1), noted(task="gone"), noted())
    with database.snapshot() as connection:
        assert set(connection.execute(select(behaviour.c.version, behaviour.c.num)).all()) == {(1, 1)}


def test_a_later_revision_is_not_counted_again(database: Database) -> None:
    serve(database, monitors(), 0.0, noted(cluster="c"), noted(cluster="c", revision=2))
    assert {held.num for held in sums_of(database).values()} == {1}


def test_clusters_are_bounded(database: Database) -> None:
    serve(database, monitors(), 0.0, *(noted(cluster=f"{number:03}" + "x" * 80) for number in range(100)))
    clusters = {cluster: held.num for (cluster, metric), held in sums_of(database).items() if metric == "asks"}
    assert len(clusters) == 65
    assert (clusters[""], clusters[OTHER]) == (100, 37)


def test_nulls_of_one_cluster_raise_an_alarm_a_gauge_and_a_line_in_the_log(database: Database) -> None:
    watching = monitors()
    honest = [noted(version=0, cluster=f"c{number % 4}") for number in range(800)]
    assert serve(database, watching, 0.0, *honest) == []
    broken = [
        noted(version=1, cluster=f"c{number % 4}", verdict=NULL if number % 4 == 2 else honest[0].verdict)
        for number in range(400)
    ]
    with capture_logs() as logs:
        rows = serve(database, watching, LOOK_SECONDS, *broken)
    assert [(row.name, row.version, row.cluster, row.at) for row in rows if row.name == "null"] == [
        ("null", 1, "", LOOK_SECONDS),
        ("null", 1, "c2", LOOK_SECONDS),
    ]
    said = next(line["reason"] for line in logs if "'c2'" in line["reason"])
    assert said.startswith(
        "version 1 on prompts of cluster 'c2': null, no reward by a fault that is not the model's: 1"
    )
    values = {among: gauge("millrace_null_share", among=among) for among in ("all", "worst cluster")}
    assert values == {"all": 0.25, "worst cluster": 1.0}
    assert gauge("millrace_behaviour_alarms", name="null") == 2.0
    assert serve(database, watching, 2 * LOOK_SECONDS) == rows
    serve(database, watching, LOOK_SECONDS + RINGS_SECONDS)
    assert gauge("millrace_behaviour_alarms", name="null") == 0.0


def test_it_looks_only_now_and_then(database: Database) -> None:
    watching = monitors()
    serve(database, watching, 0.0)
    nulls = [noted(verdict=NULL)] * 200
    assert serve(database, watching, LOOK_SECONDS - 0.1, *nulls) == []
    assert serve(database, watching, LOOK_SECONDS) != []


def test_two_replicas_raise_an_alarm_once(database: Database) -> None:
    nulls = [noted(verdict=NULL)] * 200
    first = serve(database, monitors(), 5.0, *nulls)
    assert serve(database, monitors(), 6.0) == first


def test_nothing_noted_writes_nothing(database: Database) -> None:
    with database.transaction() as connection:
        monitors().note(connection, [])
        add_behaviour(connection, {})
        assert connection.execute(select(behaviour)).all() == []


def versions_of(rows: list[Any]) -> list[int]:
    return sorted({row.version for row in rows})


def test_the_newest_versions_are_tested_and_those_that_answer_now(database: Database) -> None:
    """Live and the canary may be much older than the newest version: the learning arm goes ahead."""
    nulls = [noted(version=version, verdict=NULL) for version in range(7) for _ in range(100)]
    with database.transaction() as connection:
        monitors().note(connection, nulls)  # by another replica
    watching = monitors()
    assert versions_of(serve(database, watching, 0.0)) == [3, 4, 5, 6]
    assert versions_of(serve(database, watching, LOOK_SECONDS, noted(version=1))) == [1, 3, 4, 5, 6]
    assert versions_of(serve(database, watching, 2 * LOOK_SECONDS)) == [1, 3, 4, 5, 6]


def gauge(metric: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(metric, {"task": "booking", **labels})
