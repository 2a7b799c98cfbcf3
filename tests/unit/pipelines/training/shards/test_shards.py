"""A trainer in several processes does what one does, or ends by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from contracts.errors import StepsBroken
from pipelines.training.known.experiences import Segmented
from pipelines.training.learning.trainees import make_trainee
from pipelines.training.settings import AdapterSettings, TrainingSettings
from pipelines.training.shards.adapter import ShardedAdapter
from pipelines.training.shards.group import Group
from pipelines.training.shards.hands import follow
from pipelines.training.shards.loading import BaseFiles
from pipelines.training.shards.making import make_share
from pipelines.training.shards.trainee import GroupTrainee
from tests.unit.pipelines.training.builders import tiny_model
from tests.unit.pipelines.training.shards.ranks import Ranks, learned, samples, saved, steps

pytestmark = pytest.mark.slow

COMMON: dict[str, Any] = {"kl_coefficient": 0.02, "mismatch_samples": 4, "max_tokens": 64}
LORA = TrainingSettings(adapter=AdapterSettings(rank=4), learning_rate=1e-3, **COMMON)
WHOLE = TrainingSettings(learning_rate=1e-4, **COMMON)
NUM_STEPS = 50
TOLERANCE = 2e-4
"""Of losses around 1 after 50 steps, whose sums are taken in another order."""


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tiny_model(), tmp_path_factory.mktemp("base"))


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [step["skipped"] for step in found] == [step["skipped"] for step in expected]
    for name in ("loss", "gradient_norm"):
        values, wanted = ([step[name] for step in each] for each in (found, expected))
        assert values == pytest.approx(wanted, rel=1e-3, abs=TOLERANCE)


@pytest.mark.parametrize("settings", [LORA, WHOLE], ids=["lora", "whole"])
def test_two_processes_learn_what_one_does_and_twice_the_same(
    two: Ranks, base: str, settings: TrainingSettings
) -> None:
    first, second = (two.run(learned, base, settings, NUM_STEPS)[0] for _ in range(2))
    assert first == second
    compare(first, steps(make_trainee(base, settings, "cpu"), settings, NUM_STEPS))


@pytest.mark.parametrize("settings", [LORA, WHOLE], ids=["lora", "whole"])
def test_four_processes_learn_what_one_does(base: str, settings: TrainingSettings) -> None:
    four = Ranks(4)
    try:
        found = four.run(learned, base, settings, NUM_STEPS)[0]
    finally:
        four.close()
    compare(found, steps(make_trainee(base, settings, "cpu"), settings, NUM_STEPS))


class Crowded(ShardedAdapter):
    """Has no room for the batches of a whole step, once."""

    num_failures = 0

    def _most_tokens(self, experiences: Sequence[Segmented]) -> int:
        if len(experiences) > 1 and not self.num_failures:
            self.num_failures += 1
            raise MemoryError
        return super()._most_tokens(experiences)


def lacking(group: Group, base: str, settings: TrainingSettings) -> Any:
    """Rank 1 is crowded."""
    if not group.rank:
        return learned(group, base, settings, 6)
    files = BaseFiles(base)
    share = Crowded(files, files.root(group), settings, "cpu", group)
    follow(share, group)
    return share.num_failures


def test_memory_that_runs_out_on_one_rank_is_asked_again_of_all(two: Ranks, base: str) -> None:
    found, num_failures = two.run(lacking, base, LORA)
    assert num_failures == 1
    compare(found, steps(make_trainee(base, LORA, "cpu"), LORA, 6))


def failing(group: Group, base: str, settings: TrainingSettings) -> Any:
    """Rank 1 fails in its second pass."""
    if not group.rank:
        return learned(group, base, settings, 6)
    share = make_share(base, settings, "cpu", group)
    calls = iter([False, True])

    def hook(*_: Any) -> None:
        if next(calls, False):
            raise ValueError("a broken card")

    share.model.model.layers[0].register_forward_pre_hook(hook)
    follow(share, group)
    return None


def test_a_rank_that_fails_alone_ends_the_group_by_name(two: Ranks, base: str) -> None:
    first, second = two.run(failing, base, WHOLE, deadline=6.0)
    for error in (first, second):
        assert isinstance(error, StepsBroken)
        assert "rank 1 of the trainer failed in a pass" in str(error)
        assert "a broken card" in str(error)


def hanging(group: Group, base: str, settings: TrainingSettings) -> Any:
    """Rank 1 stands still for longer than the deadline."""
    if not group.rank:
        return learned(group, base, settings, 2)
    share = make_share(base, settings, "cpu", group)
    share.forget_gradient = lambda: time.sleep(8)  # type: ignore[method-assign]
    follow(share, group)
    return None


def test_a_rank_that_hangs_is_named_at_the_deadline(two: Ranks, base: str) -> None:
    first, _ = two.run(hanging, base, LORA, deadline=4.0)
    assert isinstance(first, StepsBroken)
    assert "rank 1 did not come" in str(first)


def refusing(group: Group, base: str) -> tuple[str, int]:
    """A verb that every rank refuses, and one afterwards."""
    if group.rank:
        follow(make_share(base, WHOLE, "cpu", group), group)
        return "", 0
    trainee = GroupTrainee(make_share(base, WHOLE, "cpu", group), group)
    found = ""
    try:
        trainee.log_probs([])  # there is nothing to put together
    except (RuntimeError, ValueError) as error:
        found = str(error)
    count = len(trainee.log_probs(samples(np.random.default_rng(0), 2)).found_S)
    trainee.close()
    return found, count


def test_what_every_rank_refuses_is_raised_and_the_group_goes_on(two: Ranks, base: str) -> None:
    (found, count), _ = two.run(refusing, base)
    assert "torch.cat" in found
    assert count > 0
