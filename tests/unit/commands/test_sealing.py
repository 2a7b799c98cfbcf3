"""Episodes has the ledger sealed by a real `millrace audit --seal`, and the age of the last seal tells when it is not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import func, insert, select, update

from commands import episodes
from commands.episodes import SEALED_EVERY_SECONDS, SealKeeper
from commands.home import prepare_home
from contracts.assignments import LIVE, move
from contracts.tables import assignment_change, ledger_mark, received_signal
from runtime.database import Database
from runtime.settings import Settings

PRODUCT = Path(__file__).parent.parent.parent.parent / "examples" / "reservations"
NEVER = threading.Event()


def age() -> float:
    return REGISTRY.get_sample_value("millrace_ledger_seal_age_seconds") or 0.0


@pytest.mark.slow
def test_a_ledger_is_sealed_once_a_day_and_only_if_it_balances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "_LOW_PRIORITY", 0)  # other tests run beside it
    home, base, tasks = tmp_path / "home", str(PRODUCT / "base"), (PRODUCT / "task.toml",)
    settings = Settings(home=home, run="r", policy="reservations", base=base, tasks=tasks)
    prepare_home(settings, {})
    database = settings.database()
    keeper = SealKeeper(settings.home, database)

    def sealed_at() -> float | None:
        with database.snapshot() as connection:
            found: float | None = connection.execute(select(func.max(ledger_mark.c.at))).scalar_one()
        return found

    assert sealed_at() is None
    assert keeper.look(time.time(), NEVER)  # there was none
    before = sealed_at()
    assert before is not None
    assert abs(age() - (time.time() - before)) < 60.0
    assert not keeper.look(before + SEALED_EVERY_SECONDS - 60.0, NEVER)

    with database.transaction() as connection:  # acknowledged, and nobody has it
        row = {"id": "s", "tenant": "t", "body_hash": "", "received_at": 0.0, "record": b""}
        connection.execute(insert(received_signal).values(row))
    assert keeper.look(time.time() + SEALED_EVERY_SECONDS + 60.0, NEVER)
    assert sealed_at() == before
    database.close()


def test_a_restart_does_not_hide_that_nothing_was_sealed(database: Database, tmp_path: Path) -> None:
    made_at = time.time() - 3 * 86_400.0
    with database.transaction() as connection:
        move(connection, policy="p", arm=LIVE, version=0, expected_epoch=0, writer="init", reason="the first version")
        connection.execute(update(assignment_change).values(at=made_at))
    stop = threading.Event()
    keeper = threading.Thread(target=SealKeeper(tmp_path, database).run, args=(stop,))
    keeper.start()
    try:
        deadline = time.monotonic() + 10.0
        while age() < 3 * 86_400.0:
            assert time.monotonic() < deadline, age()
            time.sleep(0.01)
    finally:
        stop.set()
        keeper.join()
