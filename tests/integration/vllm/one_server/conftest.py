from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.vllm.world import VllmWorld, vllm_python


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorld]:
    python = vllm_python()
    if python is None:
        pytest.skip("vLLM is not here: `make vllm` makes its environment, MILLRACE_VLLM_PYTHON names another")
    made = VllmWorld(tmp_path_factory.mktemp("vllm") / "home", python)
    try:
        yield made
    finally:
        made.close()
