"""What every test may use: a migrated database and a log of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from runtime.database import Database
from runtime.log.local import LocalLog
from tests.databases import write_migrated
from tests.torch_marker import touches_torch


def pytest_sessionstart() -> None:
    """What collection makes stays to the end: to look through it for garbage took a third of its time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is made."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what touches torch: `make test-torch` runs it as other CPUs would."""
    for item in items:
        if touches_torch(item.path):
            item.add_marker("torch")


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command run inside a test configures logging: for that test only."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file built by the real migrations, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "millrace.db"
    write_migrated(path)
    return path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "millrace.db"
    write_migrated(path)
    opened = Database(f"sqlite:///{path}")
    yield opened
    opened.close()


@pytest.fixture
def event_log(tmp_path: Path) -> Iterator[LocalLog]:
    log = LocalLog(tmp_path / "log")
    yield log
    log.close()
