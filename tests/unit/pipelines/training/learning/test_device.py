from __future__ import annotations

import pytest
import torch

from contracts.errors import StepsBroken
from pipelines.training.learning.device import TokenBudget, check_card

CPU = torch.device("cpu")


def test_a_device_that_multiplies_rightly_passes_and_no_random_number_is_used_up() -> None:
    before = torch.get_rng_state()
    check_card(CPU)
    check_card(CPU, lambda left, right: (left.bfloat16().double() @ right.bfloat16().double()).float())
    assert torch.equal(torch.get_rng_state(), before)


def test_one_wrong_number_is_enough_to_refuse_a_device() -> None:
    def wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = left @ right
        product[200, 31] += 1
        return product

    with pytest.raises(StepsBroken, match="cpu multiplies wrongly"):
        check_card(CPU, wrong)


def test_layers_are_computed_again_for_memory_alone() -> None:
    budget = TokenBudget(4096)
    budget.limit(256)  # users must not wait for longer
    assert (budget.current, budget.in_memory) == (256, 4096)
    assert budget.shrink(4, 64)
    assert (budget.current, budget.in_memory) == (128, 128), "memory ran out"
