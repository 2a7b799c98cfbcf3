from __future__ import annotations

from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console
from sqlalchemy import insert

from commands.audit import Audit
from commands.home import Home
from contracts.event_log import LogRecord
from contracts.ledger import LedgerCounts
from contracts.records import Outcome, encode
from contracts.tables import swap, verdict
from contracts.topics import GENERATIONS, OUTCOMES, SIGNALS
from examples.demo.figures import broken_promises
from examples.demo.loop import all_judged, is_settled
from examples.demo.summary import GOALS, DemoRun, figures_of, print_summary, summarise
from examples.reservations.evaluate import Evaluation
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.tensors import Tensor, Tensors


def judge(database: Database, version: int, *, accepted: bool = True) -> None:
    row = {"policy": "booking", "accepted": accepted, "reason": "", "details": {}, "at": float(version)}
    with database.transaction() as connection:
        connection.execute(insert(verdict).values(version=version, **row))


def learn(database: Database, version: int) -> tuple[str, str]:
    """An answer and a signal that are part of a version; returns their ids."""
    handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
    about = a_generation()
    said = a_signal(about)
    told = Outcome(key=about.key, revision=1, epoch=1, state="trained", version=version, writer="training", at=1.0)
    with database.transaction() as connection:
        for topic, record in ((GENERATIONS, about), (SIGNALS, said), (OUTCOMES, told)):
            handler.handle(connection, [handler.read(LogRecord(topic, 0, 0, "", encode(record), 0.0))])
    return about.key, said.id


def publish(home: Home, version: int, base: Tensors | None, num_changed: int) -> Tensors:
    values = np.zeros(1000, "<u2")
    values[:num_changed] = version
    target = {"w": Tensor("BF16", (1000,), values.view(np.uint8))}
    publish_version(
        open_weight_store(home.settings), policy="booking", run="r", version=version,
        parent=version - 1 if version else None, base=base, target=target, step=0, epoch=1, num_samples=1, created_at=0.0,
    )  # fmt: skip
    return target


def test_the_loop_is_drained_once_every_version_that_learned_was_judged(home: Home) -> None:
    database = home.settings.database()
    assert all_judged(database, "booking")
    learn(database, 1)
    assert not all_judged(database, "booking")
    assert not is_settled(database, "booking")
    judge(database, 1, accepted=False)
    assert all_judged(database, "booking")
    assert is_settled(database, "booking")
    database.close()


def test_the_summary_keeps_to_its_definitions(home: Home) -> None:
    base = publish(home, 0, None, 0)
    first = publish(home, 1, base, 100)
    publish(home, 2, first, 300)
    database = home.settings.database()
    for version in (0, 1, 2):
        judge(database, version)
    judge(database, 3, accepted=False)
    key, signal_id = learn(database, 1)
    with database.transaction() as connection:
        for arm, gap in (("live", 0.004), ("live", None), ("candidate", 9.0)):
            row = {"policy": "booking", "version": 1, "at": 0.0, "stage_seconds": 0.0, "pause_seconds": 0.0}
            connection.execute(insert(swap).values(arm=arm, gap_seconds=gap, **row))
    database.close()
    clients: list[dict[str, Any]] = [
        {"kind": "generation", "key": key, "version": 0, "at": 10.0},
        {"kind": "signal", "id": signal_id, "key": key, "positive": True, "at": 11.0},
        {"kind": "generation", "key": "other", "version": 3, "at": 13.0},
        {"kind": "failed", "what": "", "at": 12.0},
    ]
    counts = LedgerCounts(1, {"trained": 1})
    audited = Audit(counts, counts, ())
    base_run = Evaluation(0, (True, False) * 20, 5.0, 90.0)
    live_run = Evaluation(2, (True, True, True, False) * 10, 41.0, 80.0)
    pace = {
        "engine_alone": 90.0,
        "first": 14.4,
        "mean": 12.0,
        "slowest": 9.0,
        "fastest": 14.4,
        "slowed_for": {"the gate": 2},
    }
    run = DemoRun(base_run, live_run, audited, clients, 1e-4, 0.1, pace, {}, [])
    summary = summarise(home.settings, run)
    assert (summary["held_out_base"], summary["held_out_live"], summary["live_version"]) == (0.5, 0.75, 2)
    assert summary["p_better"] == 0.5**10
    assert (summary["versions_shipped"], summary["failed_requests"], summary["ledger_balanced"]) == (2, 1, True)
    assert summary["ungated"] == [3], "it was refused"
    assert (summary["freshness_p50_s"], summary["signals_served"]) == (30.0, 1)
    assert summary["delta_density"] == 0.2
    described = [(item["version"], item["density"], item["pause_ms"]) for item in summary["versions"]]
    assert described == [(1, 0.1, 0.0), (2, 0.3, None)]
    assert all(item["ratio"] > 1 and item["bytes"] > 0 for item in summary["versions"])
    assert summary["swap_pause_p99_ms"] == 4.0
    assert (summary["accepted_base"], summary["accepted_last"], summary["num_last"]) == (1.0, None, 0)
    assert (summary["seconds_until_85"], summary["answers_until_85"]) == ([15.0, 0.0, None], [2, 1, None])
    assert summary["delta_at_realistic_rate"] is None, "there is no checkpoint"
    assert broken_promises(summary, learns=True) == [
        "1 requests failed", "versions answered users before the gate had accepted them: 3",
    ]  # fmt: skip
    summary |= {
        "seconds": 500.0,
        "machine": {"cores": 2, "demo_cores": 1.5, "other_cores": 0.2, "load": 3.0},
    }
    console = Console(file=StringIO(), width=120)
    figures = figures_of(summary, GOALS)
    print_summary(console, summary, audited, figures, ["1 requests failed"])
    printed = console.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO
    assert "BROKEN: 1 requests failed" in printed
    assert "slowed down 2 times for the gate" in printed
    assert "[{" not in printed, "no list for a person"
    assert {figure.name: figure.verdict for figure in figures}["all in all"] == "missed"
