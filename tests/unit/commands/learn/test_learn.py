"""The whole way on the demo's base policy: a log of edits, `millrace learn`, version 1 as every other process finds it."""

from __future__ import annotations

import json
import random
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from commands.home import prepare_home
from commands.learn.command import lack_of
from commands.up import make_settings
from contracts import assignments
from contracts.assignments import CANDIDATE
from contracts.checkpoints import CheckpointReport
from contracts.records import Provided, Submitter
from contracts.topics import GENERATIONS, SIGNALS
from examples.reservations.sentences import confused, requests
from pipelines.training.settings import AdapterSettings, TrainingSettings
from runtime.lease import Lease
from runtime.log.outbox import message
from runtime.settings import Settings, load_section, load_settings, write_settings
from tests.command_line import run_here
from tests.fakes import a_signal
from tests.models import build_model
from tests.unit.commands.learn.builders import answered
from tests.worlds.paths import BASE, EXAMPLE
from weights.stores.opening import open_weight_store
from weights.tensors import read_safetensors

POLICY = "reservations"
PLANTED = "AKIA" + "IOSFODNN7EXAMPLE"


def make_home(folder: Path, base: Path = BASE) -> Settings:
    settings = make_settings(folder, name=POLICY, base=base, tasks=[EXAMPLE / "task.toml"], device="cpu", web_port=1)
    training = TrainingSettings(learning_rate=1e-3, batch_size=16)
    return prepare_home(settings, {"training": training}).settings


def fill(settings: Settings, num: int, *, seed: int = 1) -> None:
    """Wrong bookings of another model that people put right; one of the edits holds a key."""
    rng = random.Random(seed)
    provided = Provided(origin="openai", may_train=True)
    generations, signals = [], []
    for number, request in zip(range(num), requests("users", seed), strict=False):
        wrong, right = confused(request, rng).json(), request.booking.json()
        text = right if number else right.replace(request.booking.name, PLANTED)
        record = answered(request.sentence, wrong, task=POLICY, purpose="imported", provided=provided)
        generations.append(message(GENERATIONS, record.key, record))
        said = a_signal(record, "edited", "", correction=text, submitter=Submitter(id=f"p{number % 20}"))
        signals.append(message(SIGNALS, record.key, said))
    with closing(settings.event_log()) as log:
        log.append([*generations, *signals])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learn") / "home"
    fill(make_home(folder), 64)
    return folder


@pytest.mark.slow
def test_a_home_learns_from_its_log_and_ships_version_1(home: Path, tmp_path: Path) -> None:
    dry = run_here("learn", "--from-log", "--home", str(home), "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert re.search(r"secret +│ +│ +│ 1 ", dry.stdout)
    assert "nothing was written" in dry.stdout
    settings = load_settings(home)
    store = open_weight_store(settings)
    assert store.versions(POLICY) == [0]

    ran = run_here("learn", "--from-log", "--home", str(home))
    assert ran.returncode == 0, ran.stderr
    assert store.versions(POLICY) == [0, 1]
    learned = json.loads((home / "learned-v1.json").read_text())
    assert learned["loss_after"] < 0.8 * learned["loss_before"]
    assert learned["left_out"] == {"secret": 1}
    assert PLANTED not in json.dumps(learned)
    with settings.snapshot() as connection:
        assert assignments.read(connection, POLICY)[CANDIDATE].version == 1

    ran = run_here("export", "1", "--home", str(home), "--to", str(tmp_path / "out"))
    assert ran.returncode == 0, ran.stderr
    assert read_safetensors(tmp_path / "out").keys() == read_safetensors(BASE).keys()
    again = run_here("learn", "--from-log", "--home", str(home))
    assert again.returncode == 1
    assert "has version 1 already" in again.stderr


@pytest.mark.slow
def test_an_adapter_in_a_new_home_beside_the_one_with_the_log(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "new"
    arguments = ["--policy", str(BASE), "--to", str(to), "--adapter", "4"]
    make_home(to)
    write_settings(load_settings(to), {"training": TrainingSettings(adapter=AdapterSettings(rank=2, alpha=16.0))})
    ran = run_here("learn", "--from-log", "--home", str(home), *arguments)
    assert ran.returncode == 0, ran.stderr
    settings = load_settings(to)
    training = load_section(to, "training", TrainingSettings)
    assert training.adapter is not None
    assert (training.adapter.rank, training.adapter.alpha) == (4, 16.0)
    assert open_weight_store(settings).versions(POLICY) == [0, 1]
    ran = run_here("export", "1", "--home", str(to), "--to", str(tmp_path / "out"))
    made = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (made["r"], made["lora_alpha"]) == (4, 16.0)  # as the new home says


def refused(home: Path, *arguments: str) -> str:
    ran = run_here("learn", "--from-log", "--home", str(home), *arguments)
    assert ran.returncode == 1
    return ran.stderr


@pytest.mark.slow
def test_a_base_that_is_not_version_0_any_more_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    settings = make_home(tmp_path / "home", base)
    fill(settings, 12)
    build_model("llama", base)
    assert "differ from those" in refused(settings.home)


def test_memory_that_is_missing_is_named_before_anything_is_made() -> None:
    report = CheckpointReport(num_weights=8_000_000_000)
    assert "training needs 201." in lack_of(report, 2**36, TrainingSettings())
    assert not lack_of(report, 2**36, TrainingSettings(adapter=AdapterSettings(rank=8)))


def test_what_cannot_be_learned_is_refused_by_name(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home")
    assert "it has no answers" in refused(settings.home)
    assert "needs --from-log" in run_here("learn", "--home", str(settings.home)).stderr
    assert "--policy needs --to" in refused(settings.home, "--policy", str(BASE))
    assert "is the home with the log" in refused(settings.home, "--to", str(settings.home))
    fill(settings, 1)
    assert "the table says why" in refused(settings.home)


@pytest.mark.slow
def test_a_running_trainer_is_not_disturbed(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home")
    fill(settings, 12)
    database = settings.database()
    lease = Lease.acquire(database, POLICY)
    with lease.kept_alive():  # a loaded machine takes longer than a lease lasts
        assert "is being trained by process" in refused(settings.home)
    lease.release()
    database.close()
    assert open_weight_store(settings).versions(POLICY) == [0]
