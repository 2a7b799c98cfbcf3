"""The Rewards page is the same on PostgreSQL and on SQLite."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from runtime.settings import Settings
from services.dashboard.app import create_app
from tests.unit.services.dashboard.test_pages import signed_in
from tests.worlds.dashboard.seed import seed
from tests.worlds.dashboard.seed_rewards import OTHER, seed_rewards
from tests.worlds.servers.postgres import create_migrated

pytestmark = [pytest.mark.services, pytest.mark.enable_socket]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> list[Settings]:
    made = [
        seed(tmp_path_factory.mktemp("home") / "home", num_generations=200, database_url=url)
        for url in (create_migrated(), None)
    ]
    for settings in made:
        seed_rewards(settings)
    return made


@pytest.mark.parametrize("path", ["/rewards", f"/rewards?task={OTHER}"])
def test_the_page_is_that_of_the_embedded_home(homes: list[Settings], path: str) -> None:
    there, here = (figures_of(settings, path) for settings in homes)
    assert there == here
    assert len(here) > 2


def figures_of(settings: Settings, path: str) -> Any:
    """Every cell and definition of the page, without times."""
    with TestClient(create_app(settings), follow_redirects=False) as client:
        page = signed_in(client, settings).get(path).text
    return re.findall(r"<(?:td|dd)[^>]*>.*?</(?:td|dd)>", page)
