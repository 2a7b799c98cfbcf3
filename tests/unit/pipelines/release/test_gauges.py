"""What Prometheus is told of arms, train, holds and webhooks."""

from __future__ import annotations

import time

from prometheus_client import REGISTRY

from contracts import holds
from contracts.assignments import CANARY, LIVE
from contracts.tables import train, webhook_delivery
from pipelines.release.gauges import ReleaseGauges
from pipelines.release.webhooks import repository
from pipelines.release.webhooks.messages import make_test_event
from runtime.database import Database
from tests.worlds.release.arms import point

POLICY, URL = "p", "https://hooks.example/x"


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_the_gauges_say_what_the_database_says(database: Database) -> None:
    ahead = 0.0
    gauges = ReleaseGauges(database, POLICY, [URL], lambda: time.time() + ahead)
    gauges.look()
    assert value("millrace_train_share", arm="canary") == 0.0
    assert (value("millrace_train_stopped"), value("millrace_hold_seconds")) == (0.0, 0.0)
    assert (value("millrace_webhooks_waiting"), value("millrace_webhooks_oldest_seconds")) == (0.0, 0.0)
    assert all(value("millrace_webhook_tries_total", fate=fate) is not None for fate in ("accepted", "gone", "failed"))
    now = time.time()
    for arm, share in ((LIVE, 1.0), (CANARY, 0.2)):
        point(database, POLICY, arm, 3, share=share)
    with database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="t", reason="t", now=now - 3600.0)
        holds.freeze(connection, policy=POLICY, until=now + 7200.0, writer="t", reason="t", now=now)
        times = {"started_at": now, "stage_at": now}
        row = {"policy": POLICY, "version": 3, "blessed": 2, "state": "stopped", "stage": 1, "epoch": 1, **times}
        connection.execute(train.insert().values(**row, reason="", settings={}, evidence={}))
        repository.know_receiver(connection, POLICY, URL, now - 200.0)
        repository.add(connection, POLICY, URL, [make_test_event(POLICY)], now - 100.0)
    gauges.look()
    assert value("millrace_train_share", arm="canary") == 0.2
    assert value("millrace_train_stopped") == 1.0
    assert (value("millrace_hold_active", kind="freeze"), value("millrace_hold_active", kind="pin")) == (1.0, 0.0)
    assert 3600.0 <= (value("millrace_hold_seconds") or 0.0) < 3660.0
    assert value("millrace_webhooks_waiting") == 1.0
    assert 100.0 <= (value("millrace_webhooks_oldest_seconds") or 0.0) < 160.0
    ahead = 4 * 86_400.0
    gauges.look()
    assert (value("millrace_hold_active", kind="freeze"), value("millrace_hold_seconds")) == (0.0, 0.0)
    assert value("millrace_webhooks_waiting") == 0.0
    with database.snapshot() as connection:
        assert [row.url for row in connection.execute(webhook_delivery.select())] == [URL]
