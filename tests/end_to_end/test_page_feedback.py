"""The client of clients/javascript in a real browser, on a page of another site than the server's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.database import Database
from runtime.log.local import LocalLog
from services.feedback.app import create_app
from tests.unit.services.feedback.conftest import Page
from tests.unit.services.serving import make_home, serve, wait_until
from tests.worlds.chromium import BROWSER, Chromium
from tests.worlds.paths import ROOT

pytestmark = [
    pytest.mark.browser,
    pytest.mark.enable_socket,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here; apt-get install chromium"),
]
CLIENT = ROOT / "clients" / "javascript"
WAITING = "Object.keys(localStorage).length"
_PAGE = """<!doctype html><title>An app</title><script type="module">
import {{ feedback }} from "/index.js";
window.lost = [];
window.millrace = feedback("{url}", {{ onRefused: (error) => lost.push(error.code) }});
</script>"""


class Site:
    """An app's pages; `url` is where its pages find Millrace."""

    def __init__(self) -> None:
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response = HTMLResponse(_PAGE.format(url=self.url))
        if scope["type"] == "http" and scope["path"] == "/index.js":
            answer = PlainTextResponse((CLIENT / "index.js").read_text(), media_type="text/javascript")
        await (answer(scope, receive, send) if scope["type"] == "http" else _no_lifespan(receive, send))


class Gate:
    """Stands before a service. While it is shut, it answers 503 as the service would."""

    def __init__(self, app: ASGIApp, origin: str) -> None:
        self._app, self._origin = app, origin
        self.retry_after = ""
        """In seconds; empty: it is open."""
        self.times: list[float] = []
        """Of the requests."""
        self.num_held = 0
        """Requests that waited until their page had gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] == "/held":
            self.num_held += 1
            while (await receive())["type"] != "http.disconnect":
                pass
            app = Response()
        elif scope["type"] == "http" and scope["method"] == "POST" and "receipts" not in scope["path"]:
            self.times.append(time.monotonic())
            if self.retry_after:
                headers = {"access-control-allow-origin": self._origin, "retry-after": self.retry_after}
                app = Response(status_code=503, headers=headers | {"access-control-expose-headers": "retry-after"})
        await app(scope, receive, send)


class Tab:
    """One page of the app in the browser, and the server that it talks to."""

    def __init__(self, browser: Chromium, site: str, gate: Gate, server: Page) -> None:
        self.browser, self.site, self.gate, self.server = browser, site, gate, server

    def open(self) -> None:
        """Go to the app."""
        self.browser.open(self.site)
        self.browser.wait_for("window.millrace")

    def track(self, call: str, receipt: str | None = None) -> None:
        """Call a method of the tracked answer."""
        answer = json.dumps({"receipt": receipt or self.server.receipt(signals=["accepted", "edited", "thumbs"])})
        self.browser.evaluate(f"millrace.track({answer}).{call}")

    def network(self, *, offline: bool = False) -> None:
        """What the browser has for a network."""
        limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.browser.send("Network.emulateNetworkConditions", offline=offline, **limits)

    def said(self) -> list[tuple[str, Any]]:
        return [(sent.name, sent.value) for sent in self.server.relayed()]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def tab(browser: Chromium, tmp_path: Path, database: Database, event_log: LocalLog) -> Iterator[Tab]:
    site = Site()
    with serve(site) as site_url:
        settings = make_home(tmp_path).model_copy(update={"feedback_origins": (site_url,)})
        gate = Gate(create_app(settings, event_log=event_log), site_url)
        with serve(gate) as site.url:
            browser.begin()
            browser.send("Network.enable")
            made = Tab(browser, site_url, gate, Page(settings, database, event_log, site.url))
            made.open()
            yield made
            made.network()


def test_what_users_do_arrives_and_nothing_stays(tab: Tab) -> None:
    tab.track("accepted()")
    tab.track("rejected()")
    tab.track("edited('Tuesday, not Monday \u2714')")
    tab.track("signal('thumbs', 'down', { comment: 'no' })")
    tab.browser.wait_for(f"{WAITING} === 0")
    wait_until(lambda: len(tab.said()) == 4)
    expected = [("accepted", True), ("accepted", False), ("edited", "Tuesday, not Monday \u2714"), ("thumbs", "down")]
    assert tab.said() == expected
    assert tab.browser.evaluate("lost") == tab.browser.errors == []
    assert len(tab.gate.times) == 4, "no request more"


def test_a_retry_waits_as_long_as_the_server_says(tab: Tab) -> None:
    tab.gate.retry_after = "1"
    tab.track("accepted()")
    wait_until(lambda: tab.gate.times)
    tab.gate.retry_after = ""
    assert tab.browser.evaluate(WAITING) == 1
    wait_until(tab.said)
    tab.browser.wait_for(f"{WAITING} === 0")
    first, second = tab.gate.times
    assert 0.9 < second - first < 20
    assert tab.said() == [("accepted", True)]


def test_what_is_said_offline_is_sent_as_soon_as_the_browser_is_online(tab: Tab) -> None:
    tab.gate.retry_after = "600"  # nothing else sends it
    receipt = tab.server.receipt()
    tab.track("accepted()", receipt)
    wait_until(lambda: tab.gate.times)
    tab.gate.retry_after = ""
    tab.network(offline=True)
    for _ in range(2):
        tab.track("accepted()", receipt)
    tab.browser.wait_for(f"{WAITING} === 3")
    tab.network()
    tab.browser.wait_for(f"{WAITING} === 0")
    assert tab.server.num_received() == 3
    assert len(tab.gate.times) == 4


def test_a_page_that_goes_sends_what_waits_and_the_next_one_repeats_it_without_effect(tab: Tab) -> None:
    tab.gate.retry_after = "600"
    tab.track("accepted()")
    wait_until(lambda: tab.gate.times)
    tab.browser.wait_for(f"{WAITING} === 1")
    time.sleep(0.2)  # until the page has read the answer
    tab.gate.retry_after = ""
    tab.browser.open("about:blank")
    wait_until(tab.said)
    tab.open()
    tab.browser.wait_for(f"{WAITING} === 0")
    assert tab.server.num_received() == 1
    assert tab.said() == [("accepted", True)]


def test_a_signal_in_the_moment_in_which_the_page_goes_arrives(tab: Tab) -> None:
    # All connections that a browser opens to a server are busy, or it would be on its way before the page is gone.
    hold = f"fetch(`{tab.server.url}/held?${{n}}`, {{ mode: 'no-cors' }})"
    tab.browser.evaluate(f"for (let n = 0; n < 6; n++) void {hold}")
    wait_until(lambda: tab.gate.num_held == 6)
    tab.browser.evaluate("addEventListener('unload', () => 0)")  # such a page is not kept for the way back
    tab.track("accepted() ?? location.assign('about:blank')")
    wait_until(tab.said)
    assert tab.said() == [("accepted", True)]


def test_a_refusal_is_named_to_the_page_and_holds_nothing_up(tab: Tab) -> None:
    tab.track("accepted()", tab.server.sign(expires_at=1))
    tab.track("signal('stars', 5)")
    tab.track("accepted()", "r1.forged.receipt")
    tab.browser.evaluate("millrace.track(undefined).accepted()")  # the app's server had none
    tab.track("accepted()")
    wait_until(tab.said)
    tab.browser.wait_for(f"{WAITING} === 0")
    assert tab.browser.evaluate("lost") == ["receipt_over", "not_on_receipt", "receipt_invalid", "invalid_api_key"]
    assert tab.server.refusals() == {"receipt_over": 1, "not_on_receipt": 1}


def test_more_than_a_hundred_waiting_signals_push_out_the_oldest_by_name(tab: Tab) -> None:
    tab.gate.retry_after = "600"
    receipt = tab.server.receipt()
    tab.browser.evaluate(f"for (let n = 0; n < 103; n++) millrace.track('{receipt}').edited(`${{n}}`)")
    assert tab.browser.evaluate(WAITING) == 100
    assert tab.browser.evaluate("lost") == ["queue_full"] * 3


def test_a_page_of_another_site_is_refused_and_counted(tab: Tab) -> None:
    site = Site()
    site.url = tab.server.url
    with serve(site) as tab.site:
        tab.open()
        tab.track("accepted()")
        wait_until(lambda: tab.server.refusals().get("origin_refused"))
    assert tab.server.num_received() == 0
    assert tab.browser.evaluate(WAITING) == 1, "such a page cannot read why"


async def _no_lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
