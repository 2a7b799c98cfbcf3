"""`millrace policy train`: what a person reads of a train that runs, of those before it, and of the slots."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import assignments, holds
from contracts.assignments import CANARY, LEARNING, LIVE
from contracts.engines import EngineReplica, announce
from contracts.tables import train
from runtime.database import Database
from runtime.settings import write_settings
from runtime.train_settings import TrainSettings
from tests.command_line import run_here
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY, settings_of

METRIC = {
    "name": "refuses",
    "task": "reservations",
    "says": "Refusals: +0.4 points [-0.2, +1.0], not worse by more than 5 points.",
    "num_canary": 812,
    "num_live": 3200,
}


@pytest.fixture
def home(seeded_home: Path) -> Path:
    with settings_of(seeded_home).transaction() as connection:
        connection.execute(train.delete())
    return seeded_home


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    found = settings_of(home).database()
    yield found
    found.close()


def shown(home: Path, *arguments: str) -> str:
    ran = run_here("policy", "train", "--home", str(home), *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def add_train(database: Database, **changes: Any) -> None:
    now = time.time()
    values: dict[str, Any] = {
        "policy": POLICY,
        "version": 10,
        "blessed": 9,
        "state": "canary",
        "stage": 1,
        "epoch": 3,
        "evidence": {},
    }
    values |= {"started_at": now - 700.0, "stage_at": now - 125.0, "ended_at": None}
    values |= {"reason": "stage 2: 5% of the users", "settings": TrainSettings().model_dump(mode="json")}
    with database.transaction() as connection:
        connection.execute(train.insert().values(**{**values, **changes}))


def test_a_train_that_runs_is_told_with_its_metrics_and_what_comes_next(home: Path, database: Database) -> None:
    evidence = {
        "num_canary_units": 812,
        "num_control_units": 3200,
        "unit_kinds": {"user": 3900, "session": 112},
        "metrics": [METRIC],
        "sample_ratio": {"verdict": "fine", "seen": 0.202, "expected": 0.2},
        "says": "No harm seen. 1 of 7 metrics are proven.",
        "stage_ready_at": time.time() + 300.0,
        "next": {"kind": "stay", "reason": "too few units"},
    }
    add_train(database, evidence=evidence)
    with database.transaction() as connection:
        for arm, version, share in ((CANARY, 10, 0.05), (LEARNING, 10, 0.03)):
            moved: dict[str, Any] = {"version": version, "share": share, "writer": "t", "reason": "t"}
            assignments.move(connection, policy=POLICY, arm=arm, expected_epoch=0, **moved)
    says = shown(home)
    assert "shares of the users: learning v10 3.0%, canary v10 5.0%" in says
    assert "v10 against v9: canary, stage 2 of 4, 5.0%, for 2 min" in says
    assert "withdrawn unless proven in 3 h 4" in says
    assert "answered so far: 812 on the canary and 3200 on live (3900 by user, 112 by session)" in says
    assert any(line.startswith("an arm is drawn for each user") for line in says.splitlines())
    assert f"  reservations: {METRIC['says']} (812 and 3200 compared)" in says
    assert "sample ratio fine: 20.2% came from the canary, 20.0% were drawn for it" in says
    assert "No harm seen. 1 of 7 metrics are proven." in says
    assert "the stage may end in 4 min" in says
    assert "next: stay: too few units" in says


def test_a_train_in_shadow_has_no_figures_yet(home: Path, database: Database) -> None:
    add_train(database, state="shadow", stage=-1, reason="v10 departed")
    assert "v10 against v9: shadow, in shadow, for 2 min" in shown(home)
    assert "answered so far" not in shown(home)


def test_without_a_train_it_says_why(home: Path, database: Database) -> None:
    says = shown(home)
    assert "No engine has announced itself" in says
    assert "no train runs" in says
    engine = EngineReplica(
        "e", POLICY, "http://e", "millrace", "local", "serving", {LIVE: 9}, frozenset(), "i", "e", "", 0.0
    )
    with database.transaction() as connection:
        announce(connection, engine)
    for says in (shown(home), run_here("policy", "list", "--home", str(home)).stdout):
        assert "No engine has a canary slot: there is no train" in says
    with database.transaction() as connection:
        assignments.move(connection, policy=POLICY, arm=CANARY, version=None, expected_epoch=0, writer="t", reason="t")
    assert "No engine has a canary slot now: versions that pass the gate wait for one" in shown(home)
    write_settings(settings_of(home), {"train": TrainSettings(enabled=False)})
    assert "[train] enabled is false" in shown(home)


def test_what_holds_it_and_the_trains_before(home: Path, database: Database) -> None:
    now = time.time()
    for version, state in ((5, "shipped"), (6, "revoked"), (7, "withdrawn")):
        add_train(
            database, version=version, blessed=4, state=state, started_at=now - 90, ended_at=now, reason=f"r{version}"
        )
    with database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="the launch")
    lines = shown(home, "--last", "2").splitlines()
    assert any("frozen until somebody resumes (by ann: the launch): the train waits" in line for line in lines)
    assert [line.split("  ")[1] for line in lines if "against v4" in line] == [
        "v7 against v4: withdrawn after 1 min 30 s: r7",
        "v6 against v4: revoked after 1 min 30 s: r6",
    ]
    assert NUM_VERSIONS > 7
