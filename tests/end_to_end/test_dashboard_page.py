"""The page in a real browser: at two widths, in both themes, with a hostile text, a rollback, a lost connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from contracts import assignments
from contracts.keys import create_key
from contracts.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.sessions import TOKEN_FILE
from tests.end_to_end.chromium import BROWSER, Chromium
from tests.unit.services.dashboard.seed import NUM_VERSIONS, POLICY, seed, settings_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.enable_socket,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here; apt-get install chromium"),
]
READY = "document.documentElement.dataset.ready"
SCROLL = "document.documentElement.scrollWidth - innerWidth"
FIGURES = {
    "#tiles .tile": 6,
    "#loop svg .stage": 7,
    "#loop svg .edge": 7,
    "#rewards canvas": 1,
    "#gate canvas": 1,
    "#curves canvas": 6,
    "#generations li": 10,
    "#signals li": 7,
}


class Site:
    """The dashboard of a home, served from a thread."""

    def __init__(self, settings: Settings) -> None:
        self._app = create_app(settings)
        self._server = uvicorn.Server(uvicorn.Config(self._app, port=0, log_level="warning"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._server.serve(),))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def close(self) -> None:
        # In a process of its own a signal does both; signals reach the main thread only.
        self._loop.call_soon_threadsafe(self._app.state.watcher.stop)
        self._server.should_exit = True
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return seed(tmp_path_factory.mktemp("home"), num_generations=800)


@pytest.fixture
def site(settings: Settings) -> Iterator[Site]:
    opened = Site(settings)
    yield opened
    opened.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Chromium]:
    browser = Chromium(tmp_path / "profile")
    yield browser
    browser.close()


def enter_by_link(page: Chromium, site: Site, settings: Settings) -> None:
    (settings.home / TOKEN_FILE).write_text("token")
    page.open(f"{site.url}/?token=token")
    page.wait_for(READY)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_everything_is_drawn_and_nothing_overflows(
    page: Chromium, site: Site, settings: Settings, tmp_path: Path, *, width: int, dark: bool
) -> None:
    page.resize(width, 900, dark=dark)
    enter_by_link(page, site, settings)
    for selector, number in FIGURES.items():
        assert page.evaluate(f"document.querySelectorAll('{selector}').length") == number, selector
    assert page.evaluate(SCROLL) == 0
    assert (
        page.evaluate("document.querySelector('#generations .total').textContent")
        == "803 answers logged = 803 explained"
    )
    assert page.evaluate("document.querySelector('#alarm').hidden")
    assert page.evaluate("document.querySelector('#tiles .value').textContent") == f"v{NUM_VERSIONS - 1}"
    assert page.errors == []
    picture = tmp_path / f"dashboard-{width}{'-dark' if dark else ''}.png"
    page.screenshot(picture)
    assert picture.stat().st_size > 20_000


def test_hostile_text_is_shown_as_text(page: Chromium, site: Site, settings: Settings) -> None:
    enter_by_link(page, site, settings)
    assert page.evaluate("document.querySelector('#versions').textContent.includes('<img src=x onerror')")
    assert page.evaluate("document.querySelectorAll('#versions img').length") == 0
    assert page.evaluate("document.title") != "owned"


def test_an_empty_home_says_what_to_do(page: Chromium, tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    database = settings.database()
    database.migrate()
    database.close()
    site = Site(settings)
    try:
        page.resize(400, 900)
        enter_by_link(page, site, settings)
        assert page.evaluate("document.querySelector('#empty').innerText").startswith("Nothing has happened yet")
        assert page.evaluate("document.querySelectorAll('.nothing:not([hidden])').length") == 8
        assert page.evaluate(SCROLL) == 0
        assert page.errors == []
    finally:
        site.close()


def test_an_operator_rolls_back_in_two_steps(page: Chromium, tmp_path: Path) -> None:
    settings = seed(tmp_path / "home", num_generations=40)
    database = settings.database()
    with database.transaction() as connection:
        key = create_key(connection, "operator")
    site = Site(settings)
    try:
        page.open(site.url)
        page.evaluate(f"document.querySelector('#key').value = '{key}'")
        page.evaluate("document.querySelector('form button').click()")
        page.wait_for(READY)
        page.evaluate("document.querySelector('#tiles button').click()")
        assert page.evaluate("document.querySelector('#rollback').open")
        page.evaluate("document.querySelector('#rollback button.danger').click()")
        assert page.evaluate("document.querySelector('#rollback').open"), "a reason is required"
        page.evaluate("document.querySelector('#reason').value = 'too many complaints'")
        page.evaluate("document.querySelector('#rollback button.danger').click()")
        page.wait_for(f"document.querySelector('#tiles .value').textContent === 'v{NUM_VERSIONS - 2}'")
        assert page.evaluate("document.querySelector('#decisions').textContent.includes('too many complaints')")
        assert not page.evaluate("document.querySelector('#rollback').open")
        with database.snapshot() as connection:
            assert assignments.read(connection, POLICY)["live"].version == NUM_VERSIONS - 2
    finally:
        database.close()
        site.close()


def test_a_lost_connection_is_said(page: Chromium, settings: Settings) -> None:
    site = Site(settings)
    enter_by_link(page, site, settings)
    assert page.evaluate("document.querySelector('#lost').hidden")
    site.close()
    page.wait_for("document.documentElement.dataset.stream === 'lost'")
    assert page.evaluate("document.querySelector('#lost').textContent").startswith("Connection lost.")
