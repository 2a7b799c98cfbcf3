"""`millrace doctor --policy`, and what `up` and `init` refuse before they make anything."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from commands import policy_check
from commands.home import prepare_home
from commands.policy_check import CheckOnce, check_policy, findings_of
from contracts.checkpoints import CheckpointReport
from contracts.errors import InvalidSettings, WeightsRefused
from examples.demo import command
from pipelines.training.settings import TrainingSettings
from policy.inspect import inspect_checkpoint
from runtime.settings import Settings, load_section
from tests.command_line import refused, refused_up, run_here
from tests.models import BASE, build_model
from weights.stores.opening import open_weight_store
from weights.tensors import Tensor, read_safetensors, to_bf16

ROOT = Path(__file__).parent.parent.parent.parent
TASK = ROOT / "examples" / "reservations" / "task.toml"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", run="r", policy="reservations", base=str(BASE), tasks=(TASK,))


def test_what_is_unused_or_tied_is_not_published_and_a_copys_name_becomes_its_sources(settings: Settings) -> None:
    names = list(read_safetensors(BASE))
    report = CheckpointReport(published_as={names[0]: "", names[1]: "renamed"})
    prepare_home(settings, {}, lambda _: report)
    assert open_weight_store(settings).load("reservations", 0).keys() == {"renamed", *names[2:]}


def test_a_policy_that_is_refused_leaves_nothing_behind(settings: Settings) -> None:
    def refuse(folder: Path) -> CheckpointReport:
        raise InvalidSettings(f"{folder} cannot be served: quantised")

    with pytest.raises(InvalidSettings, match="quantised"):
        prepare_home(settings, {}, refuse)
    assert not settings.home.exists()


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I64", "F64", "BOOL"])
def test_only_floats_that_can_be_rounded_are_published(dtype: str) -> None:
    tensors = read_safetensors(BASE)
    name, tensor = next(iter(tensors.items()))
    with pytest.raises(WeightsRefused, match=name) as caught:
        to_bf16({**tensors, name: Tensor(dtype, tensor.shape, tensor.data)})
    assert caught.value.code == "wrong_dtype"


@pytest.fixture
def _looked_at_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own loads torch for seconds. `tests/unit/commands/test_wheel.py` has one."""
    monkeypatch.setattr(policy_check, "inspect_policy", inspect_checkpoint)


@pytest.mark.slow
@pytest.mark.usefixtures("_looked_at_here")
def test_doctor_describes_a_policy(tmp_path: Path) -> None:
    found = {item.name: item for item in findings_of(build_model("qwen3_moe", tmp_path, sharded=True), "cpu")}
    assert all(item.good for item in found.values())
    assert "Qwen3MoeForCausalLM: 164,736 weights in 45 tensors (45 in BF16)" in found["checkpoint"].says
    assert "slices of 25 parameters" in found["names"].says
    assert "2 layers" in found["experts"].says
    assert "trainer" in found["room"].says
    assert found["template"].says.startswith("family unknown, none of those that trl bundles")


@pytest.mark.slow
@pytest.mark.usefixtures("_looked_at_here")
def test_doctor_up_and_init_refuse_a_policy_by_name(tmp_path: Path) -> None:
    folder = build_model("qwen3_moe", tmp_path / "model", sharded=True)
    max(folder.glob("model-*.safetensors")).unlink()
    given = ["--policy", str(folder), "--task", str(TASK), "--home", str(tmp_path / "home")]
    for ran in (refused_up(*given), run_here("init", *given)):
        assert ran.returncode == 1
        assert "cannot be served: truncated" in ran.stderr
        assert not (tmp_path / "home").exists()
    told = run_here("doctor", "--policy", str(folder))
    assert told.returncode == 1
    assert "MISSING  checkpoint   truncated:" in told.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("_looked_at_here")
def test_servers_share_the_card_with_the_trainer_or_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 6000\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    given = ["--policy", str(BASE), "--task", str(TASK), "--home", str(tmp_path / "home"), "--device", "cuda"]
    ran = refused_up(*given, "--engine", "vllm", "--vllm-python", sys.executable)
    assert (ran.returncode, (tmp_path / "home").exists()) == (1, False)
    assert "the trainer does not fit" in ran.stderr
    assert "GB of engines, and cuda has 6.3 GB" in ran.stderr
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 80000\n")
    with pytest.raises(AssertionError, match="it was not refused"):
        refused_up(*given, "--engine", "vllm", "--vllm-python", sys.executable)
    assert load_section(tmp_path / "home", "training", TrainingSettings).masters == "device"


def test_the_demo_writes_where_masters_are_as_up_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    given = [
        "demo",
        "--home",
        str(tmp_path / "home"),
        "--device",
        "cuda",
        "--engine",
        "vllm",
        "--vllm-python",
        sys.executable,
    ]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 6000\n")
    ran = refused(command, *given)
    assert (ran.returncode, (tmp_path / "home").exists()) == (1, False)
    assert "GB of engines, and cuda has 6.3 GB" in ran.stderr
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 80000\n")
    with pytest.raises(AssertionError, match="it was not refused"):
        refused(command, *given)
    assert load_section(tmp_path / "home", "training", TrainingSettings).masters == "device"


def test_a_checkpoint_is_looked_at_once_until_it_changes(tmp_path: Path) -> None:
    folder, home = shutil.copytree(BASE, tmp_path / "model"), tmp_path / "home"
    home.mkdir()
    looked: list[Path] = []

    def look(place: Path) -> CheckpointReport:
        looked.append(place)
        return CheckpointReport(architecture=f"Look{len(looked)}")

    def start() -> str:
        check = CheckOnce(home, look)
        found = check(folder).architecture
        check.remember()
        return found

    assert [start(), start()] == ["Look1", "Look1"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9}))
    assert [start(), start()] == ["Look2", "Look2"]
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert [start(), start()] == ["Look3", "Look3"]
    (home / "checkpoint.json").write_text("{")
    assert start() == "Look4"


@pytest.mark.slow
@pytest.mark.usefixtures("_looked_at_here")
def test_a_configuration_that_transformers_cannot_use_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(BASE, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 0}))
    with pytest.raises(InvalidSettings, match="cannot be served: unknown_architecture"):
        check_policy(folder)
