import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtime.settings import Settings
from services.dashboard.live.reader import StateReader
from tests.worlds.dashboard.seed import STARTED, seed, settings_of
from weights.stores.opening import open_store_at

ReaderOf = Callable[[Settings], StateReader]


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A seeded home that tests only read."""
    return seed(tmp_path_factory.mktemp("seeded") / "home", num_generations=600, now=STARTED)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("untouched") / "home"
    seed(home, num_generations=40)
    return home


@pytest.fixture
def small(untouched: Path, tmp_path: Path) -> Settings:
    """A seeded home for one test."""
    return settings_of(shutil.copytree(untouched, tmp_path / "home"))


@pytest.fixture
def bare(migrated: Path, tmp_path: Path) -> Settings:
    """A home in which nothing has happened."""
    shutil.copy(migrated, tmp_path / "millrace.db")
    return settings_of(tmp_path)


@pytest.fixture
def reader_of() -> Iterator[ReaderOf]:
    with ExitStack() as held:

        def make(settings: Settings) -> StateReader:
            database, event_log = settings.database(), settings.event_log()
            held.callback(database.close)
            held.callback(event_log.close)
            return StateReader(settings.policy, database, event_log, open_store_at(settings.weights))

        yield make
