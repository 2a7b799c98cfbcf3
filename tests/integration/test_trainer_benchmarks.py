"""The trainer's benchmarks that need a large machine run whole on a small one; and a very long row fits its token budget."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.__main__ import ROWS
from benchmarks.trainer.throughput import sample
from pipelines.training.settings import TrainingSettings
from policy.logprobs import MAX_LOGITS
from tests.forked import ended, start
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import a_learner, model_of
from tests.worlds.paths import ROOT

pytestmark = pytest.mark.slow


def run(module: str, *arguments: str) -> None:
    import_module(f"benchmarks.trainer.{module}").main(arguments)


def printed(place: Path, module: str, *arguments: str) -> Any:
    """The JSON that a benchmark prints last. In a process of its own: fake tensors and trl leave traces in theirs."""
    output = place / "printed.txt"
    assert ended(start(run, module, *arguments, output=output)) == 0, output.read_text()
    return json.loads(output.read_text().splitlines()[-1])


def requirements(*packages: str) -> set[str]:
    """These distributions, what they need, and all that those need, as far as they are here."""
    found, waiting = {*packages}, [*packages]
    while waiting:
        with suppress(PackageNotFoundError):
            needed = {named(each) for each in requires(waiting.pop()) or () if "extra ==" not in each}
            waiting += needed - found
            found |= needed
    return found


def named(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_the_gpu_tables_are_filled_without_a_gpu_and_without_packages_that_its_machine_lacks(tmp_path: Path) -> None:
    """The machine with the card has torch, transformers, numba, what those need, and what `make gpu-packages` carries there."""
    carried = re.search(r"names=\((.*?)\)", (ROOT / "deploy" / "gpu-packages").read_text(), re.DOTALL)
    assert carried is not None
    there = requirements("torch", "transformers", "numba") | {named(each) for each in carried[1].split()}
    ours = {named(each) for each in requires("millrace") or () if "extra ==" not in each} - there
    lacks = [module for module, packages in packages_distributions().items() if ours.intersection(map(named, packages))]
    assert "fastapi" in lacks
    hidden = f"import sys; sys.modules.update(dict.fromkeys({lacks})); from benchmarks.gpu.__main__ import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", hidden, "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 this repository's
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*-gpu.json")
    rows = json.loads(path.read_text())["rows"]
    assert rows.keys() == {row.name for row in ROWS}
    assert {name: row["broke_off"] for name, row in rows.items() if "broke_off" in row} == {}
    reasons = {row["not_run"] for row in rows.values() if "not_run" in row}
    assert all(reason.startswith("not in this build") for reason in reasons), reasons
    step = rows["trainer, anchor computed"]
    assert step["skipped"] == []
    assert step["figures"]["ratio_mean"] == pytest.approx(1, abs=0.01)
    assert step["figures"]["step_moved"] > 0


def test_resident_state_takes_20_bytes_per_parameter_8_with_masters_in_host_memory_2_with_an_adapter(
    tmp_path: Path,
) -> None:
    held, again, host, rank_8, rank_32 = printed(tmp_path, "sizes", "--shape", "tiny", "--tokens", "2048")
    assert held["resident_bytes_per_parameter"] == pytest.approx(20, abs=0.01)
    assert host["resident_bytes_per_parameter"] == pytest.approx(8, abs=0.01)
    assert again["activations"] < held["activations"]
    assert 2 < rank_8["resident_bytes_per_parameter"] < rank_32["resident_bytes_per_parameter"] < 2.3


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Elements of the largest tensor that an operation gives."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]
        self.numel = max([self.numel, *(each.numel() for each in tensors)])
        return found


def test_a_row_far_beyond_the_token_budget_is_one_step() -> None:
    """Its layers run again, its logits come in pieces, its attention has no mask: no tensor is as large as those would be."""
    length, num_scored = 8192, 7168
    assert num_scored * 704 > MAX_LOGITS
    model = tiny_model("qwen3", max_position_embeddings=9000)
    learner = a_learner(
        model, TrainingSettings(divergence_bound=math.inf, step_bound=math.inf, mismatch_samples=0, max_tokens=2048)
    )
    random = np.random.default_rng(1)
    item = sample(random, [], 100, 100)
    [part] = item.segments
    ids = random.integers(0, 704, length).astype("<i4").tobytes()
    mask = bytes([0] * (length - num_scored) + [1] * num_scored)
    log_probs = np.full(length, -math.log(704), "<f4").tobytes()

    part = msgspec.structs.replace(part, token_ids=ids, loss_mask=mask, logprobs=log_probs)
    before = model.lm_head.weight.detach().clone()
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        result = learner.step([msgspec.structs.replace(item, segments=(part,))], [1.0], {})
    assert not result.skipped
    assert learner.budget.current == 2048
    assert model_of(learner).scorer.recomputes
    assert length * 64 < largest.numel <= MAX_LOGITS
    assert not torch.equal(model.lm_head.weight, before)
