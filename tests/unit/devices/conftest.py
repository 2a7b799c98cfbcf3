"""Each test here runs on the CPU in `make test-slow`, and on a GPU in `make test-gpu`.

On the CPU the fast tests of engine and trainer show the same for each architecture.
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return str(request.param)
