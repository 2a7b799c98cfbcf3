"""Two real processes `training` on one home: refused, taken over, and woken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from commands.home import prepare_home
from pipelines.training.checkpoints.checkpoint_names import journal_name, names_in, parse_name
from pipelines.training.settings import TrainingSettings
from runtime.lease import read_epochs
from runtime.settings import Settings
from tests.forked import ended, start_millrace
from tests.worlds.servers.leases import let_it_expire

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ROOT / "examples" / "reservations"
LEASE_SECONDS = 4.0
PATIENCE_SECONDS = 180.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(
        home=tmp_path / "home", run="r", policy="reservations", base=str(PRODUCT / "base"),
        tasks=(PRODUCT / "task.toml",),
    )  # fmt: skip
    return prepare_home(made, {"training": TrainingSettings(lease_seconds=LEASE_SECONDS)}).settings


@contextmanager
def a_trainer(settings: Settings) -> Iterator[ForkServerProcess]:
    process = start_millrace("training", "--home", str(settings.home), output=settings.home / "training.txt")
    try:
        yield process
    finally:
        process.kill()
        process.join()


def said_at_the_end(settings: Settings, process: ForkServerProcess) -> tuple[int, str]:
    """Its status, and what all trainers have printed."""
    return ended(process, PATIENCE_SECONDS), (settings.home / "training.txt").read_text()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_stopped(pid: int | None) -> bool:
    """Every thread of it: none is in the middle of a renewal."""
    return all("(stopped)" in status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status"))


def expire(settings: Settings) -> None:
    database = settings.database()
    let_it_expire(database, settings.policy)
    database.close()


def epochs_issued(settings: Settings) -> int:
    database = settings.database()
    with database.snapshot() as connection:
        number = len(read_epochs(connection, settings.policy))
    database.close()
    return number


def has_written(settings: Settings, epoch: int) -> bool:
    """That epoch's trainer saved a checkpoint, or goes on with the journal of one."""
    names = names_in(settings.checkpoints)
    if any(name.epoch == epoch for name in map(parse_name, names) if name is not None):
        return True
    return any((settings.checkpoints / name / journal_name(epoch)).exists() for name in names)


def test_a_second_trainer_is_refused_and_one_that_was_stopped_ends_when_it_wakes(settings: Settings) -> None:
    with a_trainer(settings) as first:
        assert first.pid is not None
        until(lambda: has_written(settings, 1))
        with a_trainer(settings) as refused:
            status, said = said_at_the_end(settings, refused)
        assert status == 1
        assert f"millrace: reservations is being trained by process {first.pid} on " in said
        assert epochs_issued(settings) == 1

        os.kill(first.pid, signal.SIGSTOP)
        until(lambda: is_stopped(first.pid))
        expire(settings)
        with a_trainer(settings) as second:
            until(lambda: has_written(settings, 2))
            os.kill(first.pid, signal.SIGCONT)
            status, said = said_at_the_end(settings, first)
            assert status == 1
            assert "millrace: epoch 1 of reservations is over: epoch 2 is held by process" in said
            assert second.is_alive()
            second.kill()
            second.join()

        with a_trainer(settings) as third:
            until(lambda: has_written(settings, 3))
            third.terminate()
            assert said_at_the_end(settings, third)[0] == 0
    with a_trainer(settings) as fourth:
        until(lambda: has_written(settings, 4))
        assert fourth.is_alive()
