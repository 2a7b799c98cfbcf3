"""Homes of trainers lie in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.in_memory import folder_in_memory


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
