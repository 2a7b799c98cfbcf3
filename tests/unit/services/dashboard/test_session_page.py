"""The page of a session: the tree, its figures, rights, paging, and ids of any kind."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, event, update

from contracts.tables import generation
from contracts.turns import BRANCHES
from runtime.database import Database
from runtime.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.sessions.queries import PAGE, SessionPage, find_session
from services.dashboard.sessions.tree import WORDS, totals_of, tree_of
from tests.unit.services.dashboard.test_pages import signed_in
from tests.worlds.dashboard.seed import SCRIPT, STARTED, key_of
from tests.worlds.dashboard.seed_sessions import SeededCall, call_id, linear, seed_session

TICKET = [
    SeededCall(branch="first", num_prompt=100, credit=0.81),
    SeededCall(branch="other_beginning", num_prompt=30, said="a title", state="unlabelled", reward=None, task="titles"),
    SeededCall(parent=0, shared=120, num_prompt=150, credit=0.9),
    SeededCall(parent=2, shared=170, num_prompt=200, said=SCRIPT, answer=SCRIPT),
    SeededCall(parent=2, shared=170, num_prompt=210, versions=(7, 8), credit=1.0, tool="refund"),
    SeededCall(parent=4, shared=80, branch="reasoning_dropped", num_prompt=260, state="pending"),
]
HOSTILE_ID = 'a/../"><img src=x>?&#;..%2f '


@pytest.fixture
def database(small: Settings) -> Iterator[Database]:
    opened = small.database()
    yield opened
    opened.close()


@pytest.fixture
def client(database: Database, small: Settings) -> Iterator[TestClient]:
    seed_session(database, "ticket", TICKET, number=1, now=STARTED)
    with ExitStack() as held:
        yield signed_in(held.enter_context(TestClient(create_app(small), follow_redirects=False)), small)


def address(session_id: str, tenant: str = "default", **more: str) -> str:
    return f"/sessions?{urlencode({'tenant': tenant, 'id': session_id, **more})}"


def read(database: Database, session_id: str, tenant: str = "default") -> SessionPage:
    with database.snapshot() as connection:
        return find_session(connection, tenant, session_id)


def tree(database: Database, calls: list[SeededCall]) -> list[tuple[int, int]]:
    """Number and depth of each line, from 0."""
    seed_session(database, "tree", calls, number=9, now=STARTED)
    return [(line.call.number - 1, line.depth) for line in tree_of(read(database, "tree").calls)]


def test_a_long_line_is_not_indented(database: Database) -> None:
    assert tree(database, linear(30)) == [(number, 0) for number in range(30)]


def test_what_branches_off_the_longest_chain_is_indented_under_its_parent(database: Database) -> None:
    assert tree(database, TICKET) == [(0, 0), (2, 0), (3, 1), (4, 0), (5, 0), (1, 0)]


def test_of_equally_long_chains_the_newest_goes_on(database: Database) -> None:
    assert tree(database, [SeededCall(), SeededCall(parent=0), SeededCall(parent=0)]) == [(0, 0), (1, 1), (2, 0)]


def test_a_parent_that_is_not_older_begins_a_chain(database: Database) -> None:
    assert tree(database, [SeededCall(parent=1), SeededCall(parent=0), SeededCall(parent=2)]) == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]


def test_a_call_has_its_tokens_versions_state_reward_and_share(database: Database) -> None:
    seed_session(database, "ticket", TICKET, number=1, now=STARTED)
    lines = {line.call.number: line for line in tree_of(read(database, "ticket").calls)}
    swapped = lines[5]
    assert (swapped.num_common, swapped.num_new, swapped.why, swapped.is_break) == (170, 40, "goes on", False)
    assert swapped.parent is lines[3].call
    assert swapped.call.record is not None
    assert (swapped.call.record.num_sampled, swapped.call.record.versions) == (20, (7, 8))
    assert swapped.call.record.answer == 'refund({"order": 17})'
    assert swapped.call.head is not None
    assert (swapped.call.head.state, swapped.call.head.state_version) == ("trained", 8)
    assert swapped.call.score is not None
    assert swapped.call.score.reward == 1.0
    [said] = swapped.call.signals
    assert said.share is not None
    assert (said.name, said.value, said.share.index, said.share.calls, said.share.credit) == (
        "solved",
        "true",
        2,
        3,
        1.0,
    )
    assert lines[6].is_break
    assert lines[6].why == "the template removed earlier reasoning"


def test_totals_are_those_of_the_tree(database: Database) -> None:
    seed_session(database, "ticket", TICKET, number=1, now=STARTED)
    totals = totals_of(read(database, "ticket").calls)
    assert (totals.counted.calls, totals.counted.rows) == (6, 4)
    assert (totals.counted.tokens_apart, totals.counted.tokens_together) == (1070, 530)
    assert totals.breaks == [(WORDS["other_beginning"], 1), (WORDS["reasoning_dropped"], 1)]
    assert totals.states == [("trained", 4), ("unlabelled", 1), ("pending", 1)]
    assert (totals.versions, totals.longest, totals.num_unread) == ([7, 8], 280, 0)


def test_every_branch_has_its_words() -> None:
    assert set(WORDS) == set(BRANCHES)


def test_the_page_shows_all_of_it(client: TestClient) -> None:
    page = client.get(address("ticket")).text
    assert re.findall(r">Call (\d)</a>", page) == ["1", "3", "4", "5", "6", "2"]
    assert re.findall(r"place depth-(\d)", page) == ["0", "0", "1", "0", "0", "0"]
    assert "the template removed earlier reasoning" in page
    assert "50.5 % saved" in page
    assert f'href="/generations/{call_id(1, 4)}/0"' in page
    assert 'branches off <a href="#' + call_id(1, 4) in page
    assert [page.count(f"credit {credit}") for credit in ("0.810", "0.900", "1.000")] == [1, 1, 1]
    assert 'href="/policies/8">v8</a>' in page
    assert "<script>" not in page
    assert "<img" not in page
    assert html.escape(SCRIPT)[:20] in page
    assert page.count("aria-current=") == 1
    assert not re.search(r"<[^>]*\sstyle=", page)


def test_answers_link_to_their_session_and_back(client: TestClient) -> None:
    for path in (f"/generations/{call_id(1, 4)}/0", "/generations"):
        links = re.findall(r'href="(/sessions[^"]+)"', client.get(path).text)
        assert links
        page = client.get(html.unescape(links[0])).text
        assert 'id="' + html.unescape(links[0]).partition("#")[2] + '"' in page
    assert "/sessions?" not in client.get(f"/generations/{key_of(1)}/0").text


def test_an_id_may_have_any_characters(client: TestClient, database: Database) -> None:
    for number, session_id in enumerate((HOSTILE_ID, "..", ".", SCRIPT, "x" * 256, "ä 日本/😀"), 2):
        seed_session(database, session_id, linear(2), number=number, now=STARTED, tenant="ten/ant<b>")
        [link] = re.findall(r'href="(/sessions[^"]+)"', client.get(f"/generations/{call_id(number, 0)}/0").text)
        answer = client.get(html.unescape(link))
        assert answer.status_code == 200, session_id
        assert len(re.findall(r">Call \d</a>", answer.text)) == 2, session_id
        assert "<img" not in answer.text, session_id
        assert "ant<b>" not in answer.text, session_id
        assert client.get(address(session_id)).status_code == 404, session_id


NOT_THERE = (
    (address("ticket", "other"), 404, "has no session"),
    (address("nosuch"), 404, "has no session"),
    (address(""), 404, "has no session"),
    ("/sessions", 404, "has no session"),
    (address("a\0b"), 404, "has no session"),
    (address("ticket", "a\0b"), 404, "has no session"),
    (address("x" * 257), 404, "has no session"),
    (address("ticket", "x" * 65), 404, "has no session"),
    (address("ticket", after="x"), 422, "damaged"),
    (address(SCRIPT), 404, "&lt;script&gt;"),
)


def test_what_is_not_there_is_said_on_a_page(client: TestClient) -> None:
    for path, status, words in NOT_THERE:
        answer = client.get(path)
        assert answer.status_code == status, path
        assert words in answer.text, path
        assert "<script>" not in answer.text, path


def test_only_operators_read_it(database: Database, small: Settings) -> None:
    seed_session(database, "ticket", TICKET, number=1, now=STARTED)
    with TestClient(create_app(small), follow_redirects=False) as other:
        answer = other.get(address("ticket"))
        assert answer.status_code == 401
        assert html.escape(address("ticket")) in answer.text
        app = signed_in(other, small, "app")
        answer = app.get(address("ticket"))
        assert answer.status_code == 403
        assert "operator:read" in answer.text
        assert call_id(1, 0) not in answer.text


@pytest.mark.slow
def test_a_long_session_has_pages_of_few_statements(client: TestClient, database: Database) -> None:
    seed_session(database, "short", linear(2), number=3, now=STARTED)
    seed_session(database, "long", linear(PAGE + 30), number=4, now=STARTED)
    sent: list[str] = []
    with database.snapshot() as connection:
        event.listen(connection.engine, "before_cursor_execute", lambda *told: sent.append(told[2]))
        assert len(find_session(connection, "default", "short").calls) == 2
        sent.clear()
        page = find_session(connection, "default", "long")
    assert (len(page.calls), page.num_calls, len(sent)) == (PAGE, PAGE + 30, 5 + PAGE // 25)
    first = client.get(address("long")).text
    assert f"1 to {PAGE} on this page" in first
    [later] = re.findall(r'href="([^"]+)">Later calls<', first)
    second = client.get(html.unescape(later)).text
    assert re.findall(r">Call (\d+)</a>", second) == [str(number) for number in range(PAGE + 1, PAGE + 31)]
    assert "a call that is not on this page" in second
    assert "Later calls" not in second
    assert "First calls" in second
    beyond = client.get(address("long", after=f"{call_id(4, 999)}:0"))
    assert (beyond.status_code, "There are no later calls." in beyond.text) == (200, True)


def test_calls_without_a_readable_record_keep_their_places(client: TestClient, database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(update(generation).where(generation.c.completion_id == call_id(1, 2)).values(record=b"?"))
        connection.execute(delete(generation).where(generation.c.completion_id == call_id(1, 0)))
    page = client.get(address("ticket")).text
    assert "this record cannot be read" in page
    assert "its day was deleted" in page
    assert "2 of these calls cannot be read" in page
    assert re.findall(r"place depth-(\d)", page) == ["0", "0", "1", "0", "0", "0"]
