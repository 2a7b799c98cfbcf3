"""What tests of several commands need."""

import shutil
from pathlib import Path

import pytest

from commands.home import Home
from runtime.days import migrate
from runtime.settings import Settings, write_settings
from tests.worlds.dashboard.seed import seed, settings_of


@pytest.fixture
def home(tmp_path: Path) -> Home:
    settings = Settings(
        home=tmp_path, run="r", policy="booking", base="none", tasks=(Path("none"),), weights_unsigned=True
    )
    database = settings.database()
    migrate(database)
    database.close()
    return Home(settings, "operator", "app")


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with versions and traffic, which tests only copy."""
    home = tmp_path_factory.mktemp("seeded") / "home"
    seed(home, num_generations=100)
    return home


@pytest.fixture
def seeded_home(seeded: Path, tmp_path: Path) -> Path:
    """Such a home for one test."""
    home = Path(shutil.copytree(seeded, tmp_path / "home"))
    write_settings(settings_of(home), {"millrace": settings_of(home)})
    return home
