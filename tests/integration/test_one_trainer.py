"""Two real processes `training` on one home: refused, taken over, and woken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands.home import prepare_home
from pipelines.training.checkpoint_names import journal_name, names_in, parse_name
from pipelines.training.settings import TrainingSettings
from runtime.lease import read_epochs
from runtime.settings import Settings

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
def a_trainer(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(ROOT / "millrace.py"), "training", "--home", str(settings.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
        until(lambda: has_written(settings, 1))
        with a_trainer(settings) as refused:
            said, _ = refused.communicate(timeout=PATIENCE_SECONDS)
        assert refused.returncode == 1
        assert f"millrace: reservations is being trained by process {first.pid} on " in said
        assert epochs_issued(settings) == 1

        first.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS + 1.0)
        with a_trainer(settings) as second:
            until(lambda: has_written(settings, 2))
            first.send_signal(signal.SIGCONT)
            said, _ = first.communicate(timeout=PATIENCE_SECONDS)
            assert first.returncode == 1
            assert "millrace: epoch 1 of reservations is over: epoch 2 is held by process" in said
            assert second.poll() is None
            second.send_signal(signal.SIGKILL)
            second.wait()

        with a_trainer(settings) as third:
            until(lambda: has_written(settings, 3))
            os.kill(third.pid, signal.SIGTERM)
            said, _ = third.communicate(timeout=PATIENCE_SECONDS)
            assert third.returncode == 0
    with a_trainer(settings) as fourth:
        until(lambda: has_written(settings, 4))
        assert fourth.poll() is None
