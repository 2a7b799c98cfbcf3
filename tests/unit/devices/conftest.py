"""Each test here runs on the CPU in `make test-slow`, and on a GPU in `make test-gpu`.

On the CPU the fast tests of engine and trainer show the same for each architecture.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from accelerate.state import AcceleratorState


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    # It is one for a whole process, and keeps the device of whoever came first.
    AcceleratorState._reset_state(reset_partial_state=True)
    yield str(request.param)
    AcceleratorState._reset_state(reset_partial_state=True)
