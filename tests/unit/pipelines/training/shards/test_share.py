"""One rank alone computes what a trainer in one process does: answers, text, steps, and what is published."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import InvalidSettings
from pipelines.training.learning.trainee import GradientRows, Trainee
from pipelines.training.learning.trainees import make_trainee
from pipelines.training.settings import AdapterSettings, TrainingSettings
from pipelines.training.shards.group import Group
from pipelines.training.shards.making import make_share
from pipelines.training.shards.trainee import GroupTrainee
from pipelines.training.text.samples import TextBatch, TextSample
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import tiny_model as tied_model
from tests.unit.pipelines.training.shards.ranks import group_of, samples, saved
from weights.tensors import root_of

# As in `sharded`, whose filter pytest replaces.
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")

LORA: dict[str, Any] = {"adapter": AdapterSettings(rank=4)}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("tied", LORA),
    "whole": ("tied", {}),
    "lora, mixture": ("qwen3_moe", LORA),
    "whole, mixture": ("qwen3_moe", {}),
    "whole, windows": ("gemma3", {}),
    "lora, bfloat16": ("tied", {**LORA, "precision": "bfloat16"}),
    "whole, bfloat16": ("tied", {"precision": "bfloat16"}),
}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    torch.set_num_threads(1)
    with group_of(str(tmp_path / "store")) as found:
        yield found


@pytest.fixture(params=CASES)
def both(request: pytest.FixtureRequest, tmp_path: Path, group: Group) -> tuple[Trainee, Trainee]:
    """One in a group, and one that is a whole model."""
    kind, changes = CASES[request.param]
    base = saved(tied_model() if kind == "tied" else tiny_model(kind), tmp_path / "base")
    settings = TrainingSettings(learning_rate=1e-3, step_bound=math.inf, max_tokens=64, **changes)
    return GroupTrainee(make_share(base, settings, "cpu", group), group), make_trainee(base, settings, "cpu")


def pair(number: int) -> TextSample:
    ids = (5, 6, 7), (8, number), (9, 10, number)
    fields = dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), ids, strict=True))
    return TextSample(key=f"k{number}", revision=1, kind="pair", **fields)  # type: ignore[arg-type]  # all are ids


def learn(trainee: Trainee) -> tuple[list[float], float, dict[str, torch.Tensor]]:
    items = samples(np.random.default_rng(0), 6)
    rows = GradientRows(items, [1.0] * 3 + [-1.0] * 3, [10.0] * 6, are_new=True)
    found = trainee.backward(rows)
    text = trainee.backward_text(TextBatch.of([pair(1), pair(2)]), [])
    norm = trainee.clip(1.0)
    trainee.take_step(0.5)
    trainee.forget_gradient()
    after = trainee.log_probs(items).found_S.tolist()
    figures = [found.sums.loss, *found.log_probs, *text.losses.values.values(), text.expected_length, *after]
    return figures, norm, {name: each.clone() for name, each in trainee.masters()[0].items()}


def test_a_share_of_everything_is_the_whole(both: tuple[Trainee, Trainee]) -> None:
    grouped, alone = both
    assert grouped.identity == alone.identity
    (found, norm, weights), (expected, wanted, masters) = map(learn, both)
    reduced = "bfloat16" in str(alone.machine()) or alone.precision.is_reduced  # type: ignore[attr-defined]  # of a model
    relative, absolute = (2e-2, 2e-2) if reduced else (1e-5, 1e-6)
    assert found == pytest.approx(expected, rel=relative, abs=absolute)
    assert norm == pytest.approx(wanted, rel=relative)
    assert weights.keys() == masters.keys()
    for name, each in masters.items():
        torch.testing.assert_close(weights[name], each, rtol=0, atol=1e-3 if reduced else 2e-5)


@pytest.mark.parametrize("both", ["lora", "whole", "whole, mixture"], indirect=True)
def test_what_was_published_leads_back(both: tuple[Trainee, Trainee]) -> None:
    grouped, alone = both
    start = alone.bits_of(alone.masters()[0])
    learn(grouped)
    changed = grouped.bits_of(dict(grouped.masters()[0]))
    assert root_of(changed) != root_of(start)
    grouped.restart_from(start)()
    assert root_of(grouped.bits_of(dict(grouped.masters()[0]))) == root_of(start)


def test_masters_of_a_group_are_not_on_the_host(tmp_path: Path, group: Group) -> None:
    with pytest.raises(InvalidSettings, match="masters"):
        make_share(saved(tied_model(), tmp_path / "base"), TrainingSettings(masters="host"), "cpu", group)
