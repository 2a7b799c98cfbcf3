"""What tests of several commands need."""

from pathlib import Path

import pytest

from commands.home import Home
from runtime.days import migrate
from runtime.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    settings = Settings(
        home=tmp_path, run="r", policy="booking", base="none", tasks=(Path("none"),), weights_unsigned=True
    )
    database = settings.database()
    migrate(database)
    database.close()
    return Home(settings, "operator", "app")
