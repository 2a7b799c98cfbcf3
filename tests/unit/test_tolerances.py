"""Tolerances hold what rounding does, and nothing more."""

from __future__ import annotations

import pytest
import torch

from tests.tolerances import network_tolerance, tolerance
from tests.worlds.engines.tiny import logprobs_of, tiny_config, tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_terms", [8, 64, 512])
def test_sums_in_any_order_lie_within_it(dtype: torch.dtype, num_terms: int) -> None:
    generator = torch.Generator().manual_seed(num_terms)
    left, right = (torch.randn(200, num_terms, generator=generator).to(dtype) for _ in range(2))
    products = left * right
    forth, back = (torch.zeros(200, dtype=dtype) for _ in range(2))
    for place in range(num_terms):
        forth += products[:, place]
        back += products[:, num_terms - 1 - place]
    bounds = [tolerance(dtype, num_terms, scale=float(row)) for row in products.float().abs().sum(1)]
    errors = (forth.float() - back.float()).abs().tolist()
    assert max(errors) > 0
    assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))


def test_float32_of_a_network_lies_within_it_and_a_wrong_temperature_does_not() -> None:
    prompt, answer = [5, 9, 33, 12], list(range(20, 40))
    rough = torch.tensor(logprobs_of(tiny_model(1), prompt, answer))
    exact = torch.tensor(logprobs_of(tiny_model(1).double(), prompt, answer))
    wrong = torch.tensor(logprobs_of(tiny_model(1), prompt, answer, temperature=1.01))
    bound = network_tolerance(tiny_config())
    assert float((rough - exact).abs().max()) < bound
    assert float((wrong - exact).abs().max()) > 10 * bound


def test_it_grows_with_what_it_depends_on() -> None:
    config = tiny_config()
    assert tolerance(torch.bfloat16, 4) > tolerance(torch.float32, 4)
    assert network_tolerance(config, 0.5, backward=True) == 4 * network_tolerance(config)
