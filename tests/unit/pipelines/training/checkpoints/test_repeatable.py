from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pipelines.training.learning.device import compute_repeatably


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("device", "deterministic", "is_told"), [("cpu", True, False), ("cuda", True, True), ("cuda", False, False)]
)
def test_only_a_gpu_is_told_to_sum_in_order_and_only_if_asked_to(
    device: str, deterministic: bool, is_told: bool
) -> None:
    compute_repeatably(torch.device(device), deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() is is_told
    assert torch.is_deterministic_algorithms_warn_only_enabled() is is_told
