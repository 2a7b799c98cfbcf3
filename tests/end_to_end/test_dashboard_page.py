"""The pages in a real browser: at two widths, in both themes, by keyboard, with hostile texts, a decision, a lost connection."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

import pytest
import uvicorn
from sqlalchemy import insert

from contracts import assignments, heartbeats, holds, revocations
from contracts.heartbeats import NEEDED, ProcessBeat
from contracts.keys import Role, create_key
from contracts.tables import dead_letter
from runtime.database import Database
from runtime.days import migrate
from runtime.settings import Settings
from services.dashboard import formatting
from services.dashboard.app import create_app
from services.dashboard.signin.repository import Sessions
from tests.worlds.chromium import BROWSER, Chromium
from tests.worlds.dashboard.seed import HOSTILE_NUMBER, NUM_VERSIONS, POLICY, SCRIPT, key_of, seed, settings_of
from tests.worlds.dashboard.seed_rewards import seed_rewards
from tests.worlds.dashboard.seed_rollout import CANARY_VERSION, add_train, seed_rollout
from tests.worlds.dashboard.seed_sessions import SeededCall, call_id, linear, seed_session

pytestmark = [
    pytest.mark.browser,
    pytest.mark.enable_socket,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here; apt-get install chromium"),
]
READY = "document.documentElement.dataset.ready"
SCROLL = "document.scrollingElement.scrollWidth - innerWidth"
HIDDEN_NAMES = """[...document.querySelectorAll('.top nav a')].filter((name) => {
  const box = name.getBoundingClientRect();
  return box.left < 0 || box.right > innerWidth;
}).map((name) => name.textContent)"""
"""The names of pages in the navigation that a reader does not see without scrolling."""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
FOCUSED = "document.activeElement.getAttribute('href')"
CONFIRMABLE = "!document.querySelector('#decision button.danger').disabled"
MAX_TABS = 60
WIDE = 1280
MOST_SHIFT = 0.1
"""A page that moves more under its reader is a bad page (web.dev, Cumulative Layout Shift)."""
SHIFT = """new Promise((done) => {
  let [worst, sum, first, last] = [0, 0, 0, 0];
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries().filter((one) => !one.hadRecentInput)) {
      if (entry.startTime - last > 1000 || entry.startTime - first > 5000) [sum, first] = [0, entry.startTime];
      last = entry.startTime;
      sum += entry.value;
      worst = Math.max(worst, sum);
    }
  });
  observer.observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(worst), 1500);
})"""
"""Cumulative layout shift: the largest sum of a window of at most 5 s without a pause of 1 s."""
HOSTILE_PAGE = f"/generations/{key_of(HOSTILE_NUMBER)}/0"
FIGURES = {
    "/": {
        "#tiles .tile": 6,
        "#loop svg .stage": 7,
        "#loop svg .edge": 7,
        "#rates canvas": 1,
        "#rewards canvas": 1,
        "#acceptance canvas": 1,
        "#curves canvas": 9,
        "#freshness tbody tr": 6,
        "#lags .lag": 5,
        "#alarm:not([hidden])": 0,
    },
    "/rollout": {
        "#metrics .metric": 8,
        "#metrics svg.interval": 8,
        "#points canvas": 1,
        ".way li": 6,
        ".way [aria-current]": 1,
        "#past tbody tr": 4,
        "#hold:not([hidden])": 0,
    },
    "/lift": {"#lift svg.interval": 1, "#points canvas": 1, "#tasks tbody tr": 1, "#no-holdout:not([hidden])": 0},
    "/policies": {"#arms .arm": 5, "#tree .node": NUM_VERSIONS + 1, "#tree .branch": NUM_VERSIONS, "#decisions li": 12},
    "/policies/3": {"h1": 1, ".dense tbody tr": 37, ".lineage a": 3},
    "/generations": {".found li": 40, ".search input, .search select": 6, ".paging a": 1},
    HOSTILE_PAGE: {".event": 5, ".messages li": 2, "script[src], main img": 1},
    "/rewards": {
        "#rewards canvas": 1,
        "#shares canvas": 1,
        "[aria-labelledby=versions-title] tbody tr": NUM_VERSIONS,
        ".alarms li": 3,
        "#faults tbody tr": 4,
        "#judges tbody tr": 1,
        "#refused tbody tr": 2,
    },
    "/ledger": {"#generations li": 12, "#signals li": 7, "#by-version tbody tr": NUM_VERSIONS, "#dead tbody tr": 1},
}

NUMBERS: dict[str, list[float | None]] = {
    "count": [None, 0, 999, 1_234_567],
    "figure": [None, 0, 1.2e-7, 0.0412, 0.5, -3.25, 99.4, 12345.6],
    "percent": [None, 0, 0.1234, 1],
    "points": [None, 0.066],
    "times": [1.26, 37.6],
    "seconds": [None, 0.004, 3.21, 61, 600, 7300, 200_000],
    "data_size": [None, 0, 999, 1000, 12_345_678, 5e12],
    "version": [None, -1, 0, 7],
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

    def make_link(self) -> str:
        """The token of a fresh link."""
        return Sessions(self._app.state.database).make_link()

    def forget_connections(self) -> None:
        """Make the next read open the database's file anew."""
        self._app.state.database.close()

    def close(self) -> None:
        # In a process of its own a signal does both; signals reach the main thread only.
        self._loop.call_soon_threadsafe(self._app.state.watchers.stop)
        self._server.should_exit = True
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    made = seed(tmp_path_factory.mktemp("home"), num_generations=800)
    seed_rewards(made)
    seed_rollout(made, time.time())
    database = made.database()
    with database.transaction() as connection:
        place = {"consumer_group": "rewards", "topic": "outcomes", "partition": 2, "offset": 7}
        connection.execute(insert(dead_letter).values(**place, reason=SCRIPT, value=b"?", at=time.time()))
    database.close()
    return made


@contextmanager
def served(settings: Settings) -> Iterator[tuple[Site, Database]]:
    """The dashboard of a home, and its database."""
    with closing(settings.database()) as database, closing(Site(settings)) as site:
        yield site, database


@pytest.fixture(scope="module")
def site(settings: Settings) -> Iterator[Site]:
    with closing(Site(settings)) as opened:
        yield opened


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("seeded") / "home"
    seed(home, num_generations=40)
    return home


@pytest.fixture
def small(seeded: Path, tmp_path: Path) -> Settings:
    """A seeded home for one test."""
    return settings_of(shutil.copytree(seeded, tmp_path / "home"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Chromium) -> Chromium:
    """An empty one, without what an earlier one kept."""
    browser.begin()
    return browser


def enter_by_link(page: Chromium, site: Site) -> None:
    page.open(f"{site.url}/?token={site.make_link()}")
    page.wait_for(READY)


def enter_by_key(page: Chromium, site: Site, database: Database, role: Role, path: str = "") -> None:
    with database.transaction() as connection:
        key = create_key(connection, role)
    page.open(site.url)
    page.evaluate(f"document.querySelector('#key').value = '{key}'")
    page.evaluate("document.querySelector('form button').click()")
    page.wait_for(READY)
    if path:
        page.open(site.url + path)
        page.wait_for(READY)


def count(page: Chromium, selector: str) -> int:
    return int(page.evaluate(f"document.querySelectorAll({selector!r}).length"))


@pytest.mark.parametrize("width", [WIDE, 400])
def test_every_page_is_drawn_and_nothing_overflows(
    page: Chromium, site: Site, tmp_path: Path, testrun_uid: str, width: int
) -> None:
    """One width is dark and the other is not; which is which, changes from run to run."""
    dark = (width == WIDE) == bool(int(testrun_uid, 16) % 2)
    page.resize(width, 900, dark=dark)
    enter_by_link(page, site)
    for address, figures in FIGURES.items():
        page.open(site.url + address)
        path = f"{address} {'dark' if dark else 'light'}"
        page.wait_for(READY)
        for selector, number in figures.items():
            assert count(page, selector) == number, (path, selector)
        assert page.evaluate(SCROLL) <= 0, path
        assert page.evaluate(HIDDEN_NAMES) == [], path
        assert page.evaluate(CONTRAST) == [], path
        assert page.evaluate("document.querySelectorAll('nav [aria-current]').length") == 1, path
        assert page.evaluate("document.querySelector('#lost').hidden"), path
        assert "undefined" not in page.evaluate("document.querySelector('main').innerText"), path
        assert page.errors == [], path
        picture = tmp_path / f"{path.strip('/').replace('/', '-')}-{width}.png"
        page.screenshot(picture)
        assert picture.stat().st_size > 10_000, path


@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_moves_while_it_fills(page: Chromium, site: Site, width: int) -> None:
    page.resize(width, 900)
    enter_by_link(page, site)
    shifts = {}
    for path in ("/", "/rollout", "/lift", "/policies", "/rewards", "/ledger"):
        page.open(site.url + path)
        page.wait_for(READY)
        shifts[path] = page.evaluate(SHIFT)
    assert {path: shift for path, shift in shifts.items() if shift > MOST_SHIFT} == {}


def test_a_process_that_stopped_is_not_live(page: Chromium, small: Settings, tmp_path: Path) -> None:
    def beat(*names: str) -> None:
        with database.transaction() as connection:
            for name in names:
                heartbeats.beat(connection, POLICY, ProcessBeat(name, "a/1", time.time(), time.time(), 120.0))

    with served(small) as (site, database):
        beat(*NEEDED)
        page.resize(400, 900)
        enter_by_link(page, site)
        assert page.evaluate("document.querySelector('#stream').textContent") == "live"
        assert page.evaluate("document.querySelector('#silent').hidden")
        began = time.monotonic()
        while page.evaluate("document.querySelector('#silent').hidden"):
            assert time.monotonic() < began + 15, "down within seconds"
            beat("release")
            time.sleep(0.5)
        assert page.evaluate("document.querySelector('#stream').textContent") == "3 down"
        assert count(page, "#silent li") == 3
        assert count(page, "#loop .dead") == 3
        assert page.evaluate(SCROLL) <= 0
        page.screenshot(tmp_path / "down.png")
        beat(*NEEDED)
        page.wait_for("document.querySelector('#silent').hidden")
        assert page.evaluate("document.querySelector('#stream').textContent") == "live"
        assert page.errors == []


def test_the_train_is_told_in_words_and_figures(page: Chromium, site: Site) -> None:
    page.resize(400, 900)
    enter_by_link(page, site)
    tab_to(page, "/rollout")
    page.press("Enter", 13, "\r")
    page.wait_for(f"location.pathname === '/rollout' && {READY}")
    said = page.evaluate("document.querySelector('main').innerText")
    for words in (
        f"v{CANARY_VERSION}",
        "stage 2 of 4",
        "nobody sends `user`",
        "[\N{MINUS SIGN}2.9, +5.3] points, margin 3.0 points",
        "canary 84.2 % of 412, live 83.0 % of 1,648",
        "A proof takes about 3,100 units of the canary.",
        "5 trains in the last year",
    ):
        assert words in said
    assert page.evaluate("document.querySelector('.verdict-worse').innerText.includes('<img src=x onerror')")
    assert count(page, "main img") == 0
    bar = "document.querySelector('.verdict-worse svg')"
    places = f"['.zero', '.point', '.margin'].map((name) => {bar}.querySelector(name).getBoundingClientRect().left)"
    zero, point, margin = page.evaluate(places)
    assert zero < margin < point, "worse: beyond the margin, on the bad side of 0"
    page.open(f"{site.url}/lift")
    page.wait_for(READY)
    said = page.evaluate("document.querySelector('#lift .value').innerText")
    assert said == "Lift over the base: +10.9 [+8.5, +13.2] points, 15,522 people"
    assert page.errors == []


def test_a_session_is_drawn_as_a_tree(page: Chromium, small: Settings) -> None:
    database = small.database()
    aside = SeededCall(parent=1, shared=80, branch="history_rewritten", said=SCRIPT, answer=SCRIPT)
    seed_session(database, "../<b>", [*linear(5), aside], number=1, now=time.time())
    database.close()
    with closing(Site(small)) as site:
        enter_by_link(page, site)
        for width in (1280, 950, 400):
            page.resize(width, 900)
            page.open(f"{site.url}/sessions?{urlencode({'id': '../<b>'})}")
            page.wait_for(READY)
            found = {".calls tbody tr": 6, ".calls .depth-1": 1, ".calls svg": 6, "main img": 0, ".calls .break": 1}
            assert {selector: count(page, selector) for selector in found} == found, width
            assert page.evaluate(SCROLL) <= 0, width
            indents = "['.depth-0', '.depth-1'].map((name) => document.querySelector(`.calls ${name} a`).getBoundingClientRect().left)"
            main, branch = page.evaluate(indents)
            assert branch == main + 20, width
        tab_to(page, f"/generations/{call_id(1, 5)}/0")
        page.press("Enter", 13, "\r")
        page.wait_for(f"location.pathname === '/generations/{call_id(1, 5)}/0' && {READY}")
        assert page.errors == []


def test_python_and_scripts_write_numbers_alike(page: Chromium, site: Site) -> None:
    enter_by_link(page, site)
    for name, values in NUMBERS.items():
        function = "dataSize" if name == "data_size" else name
        call = f"import('/static/format.js').then((f) => {json.dumps(values)}.map((value) => f.{function}(value)))"
        assert page.evaluate(call) == [getattr(formatting, name)(value) for value in values], name


def test_hostile_text_is_shown_as_text(page: Chromium, site: Site) -> None:
    enter_by_link(page, site)
    for path, place in (
        ("/policies", "#versions"),
        ("/ledger", "#dead"),
        ("/rewards", ".alarms"),
        ("/rewards", "#faulty"),
        (HOSTILE_PAGE, ".messages"),
        (HOSTILE_PAGE, ".story"),
        ("/generations?text=onerror", ".found"),
    ):
        page.open(site.url + path)
        page.wait_for(READY)
        assert page.evaluate(f"document.querySelector('{place}').textContent.includes('<img src=x onerror')"), path
        assert count(page, f"{place} img, {place} script") == 0, path
        assert page.evaluate("document.title") != "owned", path
    assert page.errors == []


def test_the_keyboard_leads_to_one_answer(page: Chromium, site: Site) -> None:
    enter_by_link(page, site)
    tab_to(page, "/generations")
    page.press("Enter", 13, "\r")
    page.wait_for("location.pathname === '/generations' && document.documentElement.dataset.ready")
    wanted = page.evaluate("document.querySelector('.hit').getAttribute('href')")
    tab_to(page, wanted)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter", 13, "\r")
    page.wait_for(f"location.pathname === '{wanted}' && document.querySelector('.tokens .token')")
    assert page.evaluate("document.querySelector('nav [aria-current]').textContent") == "Generations"


def tab_to(page: Chromium, address: str) -> None:
    """Go on with the Tab key alone."""
    for _ in range(MAX_TABS):
        page.press("Tab", 9)
        if page.evaluate(FOCUSED) == address:
            return
    raise AssertionError(f"{address} is not among the first {MAX_TABS} places of the keyboard")


def test_an_empty_home_says_what_to_do(page: Chromium, tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    database = settings.database()
    migrate(database)
    database.close()
    with closing(Site(settings)) as site:
        page.resize(400, 900)
        enter_by_link(page, site)
        assert page.evaluate("document.querySelector('#empty').innerText").startswith("Nothing has happened yet")
        assert "curl http://127.0.0.1" in page.evaluate("document.querySelector('.command').innerText")
        assert count(page, ".nothing:not([hidden])") == 12
        said = {
            "/policies": "Nothing is assigned yet",
            "/generations": "curl http://127.0.0.1",
            "/rewards": "curl http://127.0.0.1",
            "/rollout": "No train has ended yet",
            "/lift": "millrace policy holdout",
            "/ledger": "None: every",
        }
        for path, words in {"/": "No answer has completed the loop", **said}.items():
            began = time.monotonic()
            page.open(site.url + path)
            page.wait_for(READY)
            assert time.monotonic() < began + 20, f"{path}: earlier pages hold every connection of the browser"
            assert words in page.evaluate("document.querySelector('main').innerText"), path
            assert page.evaluate(SCROLL) <= 0, path
        assert page.errors == []


def test_an_operator_promotes_and_rolls_back_in_two_steps(page: Chromium, small: Settings) -> None:
    with served(small) as (site, database):
        enter_by_key(page, site, database, "operator", "/policies")
        page.evaluate("document.querySelector('#all-versions').click()")
        sizes = "[...document.querySelectorAll('#versions [data-label=payload]')].map((cell) => cell.textContent)"
        *deltas, base = page.evaluate(sizes)
        assert base.endswith(" full")
        assert all(text.endswith(" less") for text in deltas), deltas
        page.evaluate(f"""document.querySelector('[aria-label="Promote to v{NUM_VERSIONS}"]').click()""")
        decide(page, "users wait for it")
        page.wait_for(f"document.querySelector('.arm-live .value').textContent === 'v{NUM_VERSIONS}'")
        page.open(site.url)
        page.wait_for(READY)
        page.evaluate("document.querySelector('#tiles button').click()")
        assert page.evaluate("document.querySelector('#decision').open")
        page.wait_for(CONFIRMABLE)  # what it changes is shown first
        assert page.evaluate("document.querySelectorAll('#decision .effects li').length") > 1
        page.evaluate("document.querySelector('#decision button.danger').click()")
        assert page.evaluate("document.querySelector('#decision').open"), "a reason is required"
        decide(page, "too many complaints")
        page.wait_for(f"document.querySelector('#tiles .value').textContent === 'v{NUM_VERSIONS - 1}'")
        page.wait_for("!document.querySelector('#decision').open")
        page.open(f"{site.url}/policies")
        page.wait_for(READY)
        assert page.evaluate("document.querySelector('#decisions').textContent.includes('too many complaints')")
        again = f"""document.querySelector('[aria-label="Promote to v{NUM_VERSIONS}"]')"""
        assert page.evaluate(f"{again} === null"), "what was revoked does not come back"
        with database.snapshot() as connection:
            assert assignments.read(connection, POLICY)["live"].version == NUM_VERSIONS - 1


def test_an_operator_freezes_pins_and_resumes(page: Chromium, small: Settings) -> None:
    def press(name: str) -> None:
        """By keyboard: the button has the focus, Enter opens the dialog."""
        chosen = f"[...document.querySelectorAll('#actions button')].find((one) => one.textContent === '{name}')"
        page.evaluate(f"{chosen}.focus()")
        page.press("Enter", 13, "\r")
        page.wait_for("document.querySelector('#decision').open")

    shown = "[...document.querySelectorAll('#actions button:not([hidden])')].map((one) => one.textContent)"
    with served(small) as (site, database):
        page.resize(400, 900)
        enter_by_key(page, site, database, "operator", "/rollout")
        live = NUM_VERSIONS - 1
        assert page.evaluate(shown) == ["Freeze", f"Pin v{live}", f"Roll back live v{live} to v{live - 1}"]
        press("Freeze")
        assert "the train stands still" in page.evaluate("document.querySelector('#decision .what').textContent")
        decide(page, "a launch")
        page.wait_for("document.querySelector('#hold').textContent.includes('a launch')")
        assert page.evaluate("document.querySelector('#hold').textContent").startswith(
            "Frozen: nothing moves by itself."
        )
        assert page.evaluate(shown) == ["Resume", f"Roll back live v{live} to v{live - 1}"]
        press("Resume")
        decide(page, "it went well")
        page.wait_for("document.querySelector('#hold').hidden")
        press(f"Pin v{live}")
        assert page.evaluate("document.querySelector('#duration').value") == "7200", "a pin ends"
        decide(page, "a demo")
        page.wait_for("document.querySelector('#hold').textContent.includes('a demo')")
        with database.snapshot() as connection:
            hold = holds.read(connection, POLICY, time.time())
        assert hold is not None
        assert (hold.kind, hold.version) == ("pin", live)
        press(f"Roll back live v{live} to v{live - 1}")
        page.wait_for(CONFIRMABLE)
        price = page.evaluate("document.querySelector('#decision .effects').textContent")
        assert "learned samples are undone" in price
        assert "cannot be taken back" in price
        assert page.evaluate(SCROLL) <= 0
        assert page.errors == []


def test_an_operator_withdraws_and_revokes_a_canary(page: Chromium, small: Settings) -> None:
    """Each names the version that it takes, and says beforehand what it does."""
    seed_rollout(small, time.time())
    shown = "[...document.querySelectorAll('#actions button:not([hidden])')].map((one) => one.textContent)"
    canary = f"v{CANARY_VERSION}"

    def press(name: str) -> None:
        page.evaluate(
            f"[...document.querySelectorAll('#actions button')].find((one) => one.textContent === '{name}').click()"
        )
        page.wait_for("document.querySelector('#decision').open")

    with served(small) as (site, database):
        page.resize(400, 900)
        enter_by_key(page, site, database, "operator", "/rollout")
        assert f"Withdraw the canary {canary}" in page.evaluate(shown)
        assert page.evaluate(SCROLL) <= 0
        press(f"Revoke the canary {canary}")
        page.wait_for(CONFIRMABLE)
        price = page.evaluate("document.querySelector('#decision .effects').textContent")
        assert f"Revoked for good: {canary}" in price
        assert f"v{CANARY_VERSION - 1} stays live" in price
        page.evaluate("document.querySelector('#decision button[value=cancel]').click()")
        press(f"Withdraw the canary {canary}")
        assert "does not depart again" in page.evaluate("document.querySelector('#decision .what').textContent")
        decide(page, "complaints")
        page.wait_for("document.querySelector('#past').textContent.includes('complaints')")
        assert f"Withdraw the canary {canary}" not in page.evaluate(shown)
        with database.transaction() as connection:
            add_train(connection, time.time())
        page.wait_for("document.querySelector('#train .way') !== null")
        press(f"Revoke the canary {canary}")
        page.wait_for(CONFIRMABLE)
        decide(page, "it lies")
        page.wait_for("!document.querySelector('#decision').open")
        with database.snapshot() as connection:
            assert revocations.read(connection, POLICY)[CANARY_VERSION].reason == "it lies"
        assert page.errors == []


def test_a_tenant_sees_its_own_figures_and_no_button(
    page: Chromium, site: Site, settings: Settings, tmp_path: Path
) -> None:
    with closing(settings.database()) as database:
        enter_by_key(page, site, database, "app")
    shown = {
        "/": {"#tiles .tile": 6, "#rates canvas": 1, "#rewards canvas": 1, "main button": 0, "nav a": 3},
        "/rewards": {"#faults tbody tr": 4, "#refused tbody tr": 2, "#judges": 0, ".alarms": 0},
        "/ledger": {"#generations li": 11, "#signals li": 5, "#by-version tbody tr": NUM_VERSIONS, "#dead": 0},
    }
    for width, (path, figures) in product((1280, 400), shown.items()):
        page.resize(width, 900)
        page.open(site.url + path)
        page.wait_for(READY)
        for selector, number in figures.items():
            assert count(page, selector) == number, (width, path, selector)
        assert page.evaluate(SCROLL) <= 0, (width, path)
        assert "undefined" not in page.evaluate("document.querySelector('main').innerText"), (width, path)
        assert page.errors == [], (width, path)
        page.screenshot(tmp_path / f"tenant-{path.strip('/')}-{width}.png")


def decide(page: Chromium, reason: str) -> None:
    page.evaluate(f"document.querySelector('#reason').value = '{reason}'")
    page.evaluate("document.querySelector('#decision button.danger').click()")


def test_a_lost_connection_is_said_and_the_figures_stay(page: Chromium, settings: Settings) -> None:
    site = Site(settings)
    enter_by_link(page, site)
    assert page.evaluate("document.querySelector('#lost').hidden")
    site.close()
    page.wait_for("document.documentElement.dataset.stream === 'lost'")
    assert page.evaluate("document.querySelector('#lost').textContent").startswith("Connection lost.")
    assert page.evaluate("document.querySelector('#tiles .value').textContent") == f"v{NUM_VERSIONS - 1}"


def test_a_lost_database_is_said_and_the_figures_stay(page: Chromium, small: Settings) -> None:
    site = Site(small)
    enter_by_link(page, site)
    path = small.home / "millrace.db"
    held = path.rename(small.home / "away.db")
    path.mkdir()
    try:
        site.forget_connections()
        page.wait_for("document.documentElement.dataset.stream === 'fault'")
        assert "cannot be read" in page.evaluate("document.querySelector('#lost').textContent")
        assert page.evaluate("document.querySelector('#tiles .value').textContent") == f"v{NUM_VERSIONS - 1}"
        path.rmdir()
        held.rename(path)
        site.forget_connections()
        page.wait_for("document.documentElement.dataset.stream === 'live'")
        assert page.evaluate("document.querySelector('#lost').hidden")
    finally:
        site.close()
