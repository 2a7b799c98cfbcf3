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
    settings = Settings(
        home=tmp_path / "home",
        run="r",
        policy="reservations",
        base=str(PRODUCT / "base"),
        tasks=(PRODUCT / "task.toml",),
    )
    prepare_home(settings, {})
    database = settings.database()
    keeper = SealKeeper(settings.home, database)
    with database.snapshot() as connection:
        assert connection.execute(select(func.max(ledger_mark.c.at))).scalar_one() is None

    assert keeper.look(time.time(), NEVER)  # there was none
    with database.snapshot() as connection:
        sealed_at = connection.execute(select(func.max(ledger_mark.c.at))).scalar_one()
    assert abs(age() - (time.time() - sealed_at)) < 60.0
    assert not keeper.look(sealed_at + SEALED_EVERY_SECONDS - 60.0, NEVER)

    with database.transaction() as connection:  # acknowledged, and nobody has it
        row = {"id": "s", "tenant": "t", "body_hash": "", "received_at": 0.0, "record": b""}
        connection.execute(insert(received_signal).values(row))
        before = connection.execute(select(func.max(ledger_mark.c.at))).scalar_one()
    assert keeper.look(time.time() + SEALED_EVERY_SECONDS + 60.0, NEVER)
    with database.snapshot() as connection:
        assert connection.execute(select(func.max(ledger_mark.c.at))).scalar_one() == before
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
