from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from services.engine.engine import Engine
from tests.worlds.engines.memory_store import StoreInMemory
from tests.worlds.engines.tiny import make_engine, make_store


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def store() -> StoreInMemory:
    return make_store()


@pytest.fixture
def engine(store: StoreInMemory) -> Iterator[Engine]:
    """Version 1 is live."""
    engine = make_engine(store)
    engine.update("live", 1)
    yield engine
    engine.close()
