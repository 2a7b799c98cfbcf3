"""Real processes of one trainer: started by our launcher and by torchrun, killed, and refused where they do not belong together."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trainer.shards import TrainerGroup, counted, run_killed
from pipelines.training.shards.launch import environment_of
from runtime.lease import read_epochs
from runtime.settings import Settings
from tests.adversary.kills.trainer_home import STEPS_OF_A_VERSION, make_home
from tests.worlds.paths import ROOT
from tests.worlds.processes import free_port
from weights.stores.opening import open_weight_store
from weights.tensors import root_of

pytestmark = pytest.mark.slow

TRAINED = {"adapter": {"rank": 4}, "learning_rate": 1e-3, "group_seconds": 60.0}
SECONDS = 240.0


def a_rank(settings: Settings, rank: int, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "millrace.py"), "training", "--home", str(settings.home)]
    environment = {**environment_of(rank, 2, port), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(  # noqa: S603 our own program
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_group_whose_rank_was_killed_goes_on_and_decides_every_sample_once(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home", 12, 1, **TRAINED)
    [end] = run_killed(settings, 2, 12, ["SIGKILL"], 1)
    assert end.seconds_to_next_step is not None
    assert counted(settings) == {"lost": 0, "twice": 0}


def test_a_group_that_trains_all_weights_publishes_in_parts_also_after_a_kill(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home", 2 * STEPS_OF_A_VERSION, 1, **TRAINED | {"adapter": None})
    run_killed(settings, 2, 2 * STEPS_OF_A_VERSION, ["SIGKILL"], 1)
    assert counted(settings) == {"lost": 0, "twice": 0}
    store = open_weight_store(settings)
    manifest = store.manifest(settings.policy, 1)
    assert len(manifest.parts or ()) == 2
    assert root_of(store.load(settings.policy, 1)) == manifest.target_root


def test_torchrun_starts_the_same_group_and_starts_it_again(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home", 30, 1, **TRAINED)
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m", "millrace"]
    group = TrainerGroup(settings, 2, agent)
    try:
        group.until(2)
        epoch, step = group.newest()
        assert group.send(1, signal.SIGKILL)
        group.until(step + 1, epoch + 1)
    finally:
        group.process.terminate()
        group.process.wait(SECONDS)
        group.database.close()


def test_a_rank_with_other_settings_is_refused_by_name_before_anything_changes(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home", 1, 1, **TRAINED)
    other = make_home(tmp_path / "other", 1, 1, **TRAINED | {"learning_rate": 1e-4})
    port = free_port()
    ranks = [a_rank(settings, 0, port), a_rank(other, 1, port)]
    said = [process.communicate(timeout=SECONDS)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2]
    for words in said:
        assert (
            "rank 1 does not belong to this group: it differs in [millrace] home, [millrace] run, [training] learning_rate;"
            in words
        )
    with settings.snapshot() as connection:
        assert read_epochs(connection, settings.policy) == {}
    assert not list(settings.checkpoints.glob("*"))
