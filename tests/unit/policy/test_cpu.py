"""`make test-torch CPU=...` computes as it says: a variable that torch does not know would test nothing."""

from __future__ import annotations

import os

import pytest
import torch

WANTED = os.environ.get("ATEN_CPU_CAPABILITY")


@pytest.mark.skipif(WANTED is None, reason="as is: no CPU was asked for")
def test_torch_computes_as_the_cpu_that_was_asked_for() -> None:
    assert torch.backends.cpu.get_cpu_capability().lower() == (WANTED or "").lower()
