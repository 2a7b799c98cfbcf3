"""What Prometheus is told of arms, train and holds."""

from __future__ import annotations

import time

from prometheus_client import REGISTRY

from contracts import holds
from contracts.assignments import CANARY, LIVE
from contracts.tables import train
from pipelines.release.gauges import ReleaseGauges
from runtime.database import Database
from tests.worlds.release.arms import point

POLICY = "p"


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_the_gauges_say_what_the_database_says(database: Database) -> None:
    ahead = 0.0
    gauges = ReleaseGauges(database, POLICY, lambda: time.time() + ahead)
    gauges.look()
    assert value("millrace_train_share", arm="canary") == 0.0
    assert (value("millrace_train_stopped"), value("millrace_hold_seconds")) == (0.0, 0.0)
    now = time.time()
    for arm, share in ((LIVE, 1.0), (CANARY, 0.2)):
        point(database, POLICY, arm, 3, share=share)
    with database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="t", reason="t", now=now - 3600.0)
        holds.freeze(connection, policy=POLICY, until=now + 7200.0, writer="t", reason="t", now=now)
        times = {"started_at": now, "stage_at": now}
        row = {"policy": POLICY, "version": 3, "blessed": 2, "state": "stopped", "stage": 1, "epoch": 1, **times}
        connection.execute(train.insert().values(**row, reason="", settings={}, evidence={}))
    gauges.look()
    assert value("millrace_train_share", arm="canary") == 0.2
    assert value("millrace_train_stopped") == 1.0
    assert (value("millrace_hold_active", kind="freeze"), value("millrace_hold_active", kind="pin")) == (1.0, 0.0)
    assert 3600.0 <= (value("millrace_hold_seconds") or 0.0) < 3660.0
    ahead = 4 * 86_400.0
    gauges.look()
    assert (value("millrace_hold_active", kind="freeze"), value("millrace_hold_seconds")) == (0.0, 0.0)
