"""Homes of trainers lie in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.in_memory import folder_in_memory
from tests.unit.pipelines.training.world import World


class FoldersInMemory:
    """What these tests use of pytest's factory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def mktemp(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self._root))


@pytest.fixture(scope="session")
def tmp_path_factory() -> Iterator[FoldersInMemory]:
    with folder_in_memory() as folder:
        yield FoldersInMemory(folder)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """A new home: with the settings of `a_home` at the test, else with those of its module, `HOME`; and its `MAKE_MODEL`."""
    world = World.new(tmp_path / "home", **getattr(request, "param", getattr(request.module, "HOME", {})))
    world.make_model = getattr(request.module, "MAKE_MODEL", world.make_model)
    yield world
    world.close()
