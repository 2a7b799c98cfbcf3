"""The pages as the server renders them: rights, escaping, paging, and the texts of empty pages."""

import html
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, insert, update

from contracts.keys import Role, create_key
from contracts.records import Provided, encode
from contracts.tables import dead_letter, generation, score, signal
from runtime.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.formatting import MISSING
from services.dashboard.policies.queries import read_gates
from services.dashboard.signin.pages import PAGES as PAGES_BY_NAME
from services.dashboard.signin.repository import COOKIE, Sessions
from tests.fakes import a_generation
from tests.worlds.dashboard.databases import writing
from tests.worlds.dashboard.seed import HOSTILE_NUMBER, NUM_VERSIONS, SCRIPT, key_of

ORIGIN = {"origin": "http://testserver"}
HOSTILE_PAGE = f"/generations/{key_of(HOSTILE_NUMBER)}/0"
WORDS = ("/generations", HOSTILE_PAGE, "/policies/3")
PAGES = ("/", "/policies", "/rewards", "/ledger", *WORDS)


@pytest.fixture
def open_client() -> Iterator[Any]:
    with ExitStack() as held:
        yield lambda settings: held.enter_context(TestClient(create_app(settings), follow_redirects=False))


@pytest.fixture(scope="module")
def client(seeded: Settings) -> Iterator[TestClient]:
    """Of tests that only read."""
    with TestClient(create_app(seeded), follow_redirects=False) as opened:
        yield signed_in(opened, seeded)


def signed_in(client: TestClient, settings: Settings, role: Role = "operator", target: str = "") -> TestClient:
    with writing(settings) as connection:
        key = create_key(connection, role)
    answer = client.post("/api/login", data={"key": key, "next": target}, headers=ORIGIN)
    assert answer.status_code == 303
    client.headers["x-went-to"] = answer.headers["location"]
    return client


def links(page: str, name: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(rf'href="([^"]+)"[^>]*>{name}<', page)]


def test_one_sign_in_opens_every_replica(open_client: Any, small: Settings) -> None:
    here, there = signed_in(open_client(small), small), open_client(small)
    there.cookies.set(COOKIE, here.cookies[COOKIE])
    assert 'data-role="operator"' in there.get("/policies").text
    assert there.post("/api/logout", headers=ORIGIN).status_code == 303
    assert here.get("/api/state").status_code == 401


def test_the_secret_of_a_page_of_one_replica_is_good_on_another(open_client: Any, small: Settings) -> None:
    here, there = signed_in(open_client(small), small), open_client(small)
    there.cookies.set(COOKIE, here.cookies[COOKIE])
    secret = re.search(r'data-csrf="([^"]+)"', here.get("/policies").text)
    assert secret
    body = {"live": NUM_VERSIONS - 1, "reason": "complaints"}
    headers = {**ORIGIN, "x-csrf-token": html.unescape(secret[1])}
    assert there.post("/api/rollback", json=body, headers=headers).json()["live"] == NUM_VERSIONS - 2


def test_the_link_is_spent_for_every_replica(open_client: Any, small: Settings) -> None:
    here, there = open_client(small), open_client(small)
    link = f"/?token={Sessions(here.app.state.database).make_link()}"
    assert here.get(link).status_code == 303
    assert there.get(link).status_code == 401


def test_without_a_session_each_page_shows_the_form_and_signing_in_leads_back(
    open_client: Any, small: Settings
) -> None:
    client = open_client(small)
    for path in PAGES[1:]:
        client.cookies.clear()
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert f'name="next" value="{path}"' in answer.text
        assert SCRIPT not in answer.text, path
        assert signed_in(client, small, target=path).headers["x-went-to"] == path


ELSEWHERE = ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "evil", "/a\nb")


def test_signing_in_leads_nowhere_else(open_client: Any, small: Settings) -> None:
    client = open_client(small)
    for target in ELSEWHERE:
        client.cookies.clear()
        assert signed_in(client, small, target=target).headers["x-went-to"] == "/", target


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_its_title_and_says_where_one_is(client: TestClient, path: str) -> None:
    page = client.get(path).text
    assert re.search(r"<title>[^<]+ · reservations · Millrace</title>", page)
    assert page.count("aria-current=") == 1
    assert page.count("<h1") == 1
    assert '<html lang="en">' in page


def test_an_app_key_sees_numbers_but_no_words_of_users(open_client: Any, small: Settings) -> None:
    client = signed_in(open_client(small), small, "app")
    for path in WORDS:
        answer = client.get(path)
        assert answer.status_code == 403, path
        assert "operator:read" in answer.text, path
        assert "please" not in answer.text, path
    assert client.get("/ledger").status_code == 200


def test_hostile_words_are_text_wherever_they_stand(client: TestClient) -> None:
    for path in (HOSTILE_PAGE, "/generations?text=onerror", f"/generations?text={SCRIPT}&task={SCRIPT}"):
        page = client.get(path).text
        assert "&lt;script&gt;" in page
        assert "<script>" not in page
        assert "<img" not in page
    page = client.get(HOSTILE_PAGE).text
    assert (
        page.count(html.escape(SCRIPT).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) == 3
    )  # prompt, signal, submitter
    assert "".join(re.findall(r'<span class="token[^>]*title[^>]*>([^<]*)</span>', page)).startswith("&lt;")


def test_an_imported_answer_is_found_and_shown_as_such(open_client: Any, small: Settings) -> None:
    provided = Provided(origin="langfuse", model="gpt-5", import_id="ab12")
    record = a_generation(
        completion_id=key_of(30), purpose="imported", provided=provided, spans=(), engine="", dtype=""
    )
    row = {"purpose": "imported", "version": -1, "record": encode(record)}
    with writing(small) as connection:
        connection.execute(update(generation).where(generation.c.completion_id == key_of(30)).values(**row))
    client = signed_in(open_client(small), small)
    page = client.get("/generations?purpose=imported").text
    assert re.findall(r'class="hit" href="/generations/([^/]+)/0"', page) == [key_of(30)]
    page = client.get(f"/generations/{key_of(30)}/0").text
    assert "gpt-5 <small>of langfuse; import ab12</small>" in page
    assert "Engine" not in page


def test_the_pages_of_a_search_follow_each_other(client: TestClient) -> None:
    path, seen = "/generations?version=3&purpose=all", []
    while True:
        page = client.get(path).text
        seen += re.findall(r'class="hit" href="/generations/([^/]+)/0"', page)
        older = links(page, "Older")
        if not older:
            break
        path = older[0]
        assert "version=3" in path
    assert seen == [key_of(number) for number in range(239, 179, -1)]
    assert links(page, "Newest") == ["/generations?purpose=all&version=3"]


SENTINEL = "<span>sentinel</span>"


@pytest.mark.parametrize(
    ("query", "shown", "are_sentinels"),
    [
        ("", "Users' answers", {False}),
        ("?state=filtered", "Users' answers", set()),
        ("?purpose=sentinel&version=3", "Sentinels", {True}),
        ("?purpose=shadow", "Shadow answers", set()),
        ("?purpose=all&version=3", "All", {True, False}),
        ("?completion=chatcmpl-00000", "All", {True, False}),
    ],
)
def test_users_answers_come_first_and_a_link_leads_to_others(
    client: TestClient, query: str, shown: str, are_sentinels: set[bool]
) -> None:
    page = html.unescape(client.get(f"/generations{query}").text)
    found = page.partition('<ol class="found">')[2].split("<li>")[1:]
    assert {SENTINEL in row for row in found} == are_sentinels
    assert re.findall(r"<b>([^<]+)</b>", page.partition('class="choices"')[2].partition("</p>")[0]) == [shown]
    for title, purpose in (("Sentinels", "sentinel"), ("All", "all")):
        kept = query.replace("purpose=shadow", "").replace("purpose=sentinel&", "").replace("purpose=all&", "")
        if title != shown:
            assert links(page, title) == [
                f"/generations{kept}{'&' if len(kept) > 1 else '' if kept else '?'}purpose={purpose}"
            ]


def test_a_row_shows_what_users_said_and_what_it_earned(open_client: Any, small: Settings) -> None:
    with writing(small) as connection:
        connection.execute(update(score).values(reward=0.25))
        connection.execute(
            update(score)
            .where(score.c.key.startswith(key_of(39)))
            .values(reward=None, status="unscored", fault="infra")
        )
        connection.execute(update(signal).where(signal.c.completion_id == key_of(HOSTILE_NUMBER)).values(state="late"))
        connection.execute(update(generation).values(purpose="user", created_at=5.0))
        connection.execute(delete(signal).where(signal.c.completion_id == key_of(38)))
        connection.execute(delete(score).where(score.c.key.startswith(key_of(38))))
    page = html.unescape(signed_in(open_client(small), small).get("/generations").text)
    rows = dict(
        zip(re.findall(r'class="hit" href="/generations/([^/]+)/0"', page), page.split("<li>")[1:], strict=True)
    )
    assert f"reward <b>{MISSING}</b> <small>unscored, fault: infra</small>" in rows[key_of(39)]
    assert 'class="earned"' not in rows[key_of(38)]
    hostile = rows[key_of(HOSTILE_NUMBER)]
    assert "reward <b>0.250</b>" in hostile
    assert "<small>late</small>" in hostile


def test_one_answer_shows_tokens_signals_scores_and_outcomes(client: TestClient) -> None:
    found = client.get("/generations?state=trained&version=2").text
    page = client.get(re.findall(r'class="hit" href="([^"]+)"', found)[0]).text
    tokens = re.findall(r'<span class="token shade-(\d)" title="id \d+ · log-prob -?\d+\.\d+ · [\d.]+ %">', page)
    assert len(tokens) > 10
    assert len(re.findall(r'<code class="piece">', page)) == len(tokens)
    assert 'href="/policies/2"' in page
    assert 'href="/policies/3"' in page
    assert "by ann (user)" in page
    assert "signal/1#ab12" in page
    assert "first in v3" in page


def test_a_version_shows_what_it_learned_page_by_page(client: TestClient) -> None:
    path, seen = "/policies/3", []
    first = client.get(path).text
    while True:
        page = client.get(path).text
        seen += re.findall(r'href="/generations/([^/]+)/0"', page)
        older = links(page, "Older")
        if not older:
            break
        path = older[0]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) > 20
    assert f"{len(seen)} samples" in first
    assert [links(first, f"v{number}") for number in (1, 0)] == [["/policies/1"], ["/policies/0"]]


def test_a_version_shows_the_comparisons_of_the_gate(client: TestClient) -> None:
    page = client.get("/policies/2").text
    assert "Comparisons of the gate" in page
    assert '<td>reservations</td><td>exact</td><td><a href="/policies/1">v1</a> <small>live</small></td>' in page
    assert "<td>4 <small>of 200</small></td>" in page
    assert "<td>6.6 points</td>" in page


def gates_on_the_page(open_client: Any, settings: Settings, *tasks: Path) -> list[str]:
    changed = settings.model_copy(update={"tasks": tasks})
    page = signed_in(open_client(changed), changed).get("/policies").text
    [section] = re.findall(r'id="gates-title".*?</section>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", line).split()) for line in re.findall(r"<li>(.*?)</li>", section)]


def test_the_policies_page_shows_the_gate_of_each_task(open_client: Any, small: Settings, tmp_path: Path) -> None:
    product = Path("examples/reservations")
    chat, sentinels = tmp_path / "chat.toml", product / "sentinels.jsonl"
    chat.write_text('name = "chat"\n[signals.ok]\ntype = "bool"\nlabels = { true = 1.0 }\n')
    nothing = "none of its graders says whether an answer is right: versions ship however bad they are at it"
    (small.home / "millrace.toml").write_text(f'[release]\nsentinels = "{sentinels}"\n')
    assert gates_on_the_page(open_client, small, product / "task.toml", chat) == [
        "reservations exact on 200 sentinels the newest verdict could detect 6.6 points",
        f"chat ungated {nothing}",
    ]


def test_what_the_gate_sees_is_said_without_the_comparison_with_the_train(tmp_path: Path) -> None:
    product = Path("examples/reservations")
    (tmp_path / "millrace.toml").write_text(f'[release]\nsentinels = "{product / "sentinels.jsonl"}"\n')
    roles = {"live": 0.05, "anchor": 0.07, "train": 0.3}
    comparisons = [{"reference": role, "least_difference": least} for role, least in roles.items()]
    newest = {"tasks": {"reservations": {"comparisons": comparisons}}}
    [found] = read_gates((product / "task.toml",), tmp_path, newest)
    assert (found.alarm, found.sees) == ("", 0.07)


def test_the_policies_page_stands_though_no_task_can_be_read(open_client: Any, small: Settings) -> None:
    [line] = gates_on_the_page(open_client, small, Path("nosuch.toml"))
    assert line == "this home unreadable nosuch.toml: No such file or directory"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/policies/99", 404, "no version 99"),
        ("/policies/-1", 404, "version"),
        ("/policies/x", 404, "version"),
        (f"/policies/{2**70}", 404, "version"),
        ("/policies/3?after=x", 422, "damaged"),
        ("/generations/chatcmpl-x/0", 404, "no answer chatcmpl-x"),
        ("/generations/chatcmpl-x/one", 404, "choice"),
        ("/generations?version=newest", 422, "is not a version"),
        ("/generations?before=soon", 422, "is not a time"),
        ("/generations?after=x", 422, "damaged"),
        (f"/generations?text={'a' * 201}", 400, "text"),
    ],
)
def test_a_failure_is_shown_on_a_page(client: TestClient, path: str, status: int, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert words in answer.text
    assert "<nav" in answer.text


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


UNKNOWN: tuple[tuple[Role | None, str, dict[str, str], str], ...] = (
    (None, "/nosuch", BROWSER, "sign in to see the known ones"),
    ("operator", "/generation", BROWSER, "there is no page /generation<"),
    ("operator", "/static/nosuch.js", BROWSER, "there is no page"),
    ("operator", "/nosuch", {}, "there is no GET /nosuch"),
    ("operator", "/api/nosuch", BROWSER, "there is no GET /api/nosuch"),
    ("app", "/nosuch", BROWSER, '<a href="/">Overview</a>'),
)


def test_an_unknown_page_offers_the_known_ones(open_client: Any, small: Settings) -> None:
    client = open_client(small)
    for role, path, headers, words in UNKNOWN:
        if role is not None:
            signed_in(client, small, role)
        answer = client.get(path, headers=headers)
        is_page = answer.headers["content-type"].startswith("text/html")
        assert (answer.status_code, is_page) == (404, bool(headers) and not path.startswith("/api/")), (role, path)
        assert words in html.unescape(answer.text)
        offered = re.findall(r'href="(/\w*)"', answer.text.partition("Known pages")[2])
        known = {"operator": list(PAGES_BY_NAME), "app": ["/", "/rewards", "/ledger"]}.get(role or "", [])
        assert offered == (known if is_page else []), (role, path)


def test_an_empty_home_says_what_to_do(open_client: Any, bare: Settings) -> None:
    client = signed_in(open_client(bare), bare)
    assert "curl" in client.get("/generations").text
    assert "No answer matches" in client.get("/generations?state=trained").text
    assert "curl" in client.get("/").text
    state = client.get("/api/state").json()
    assert state["versions"] == state["arms"] == state["dead_letters"] == state["rates"]["at"] == []
    assert client.get("/policies/0").status_code == 404


def test_without_a_database_pages_say_so(open_client: Any, small: Settings) -> None:
    client = signed_in(open_client(small), small)
    (small.home / "millrace.db").rename(small.home / "away.db")
    for suffix in ("-wal", "-shm"):
        (small.home / f"millrace.db{suffix}").unlink(missing_ok=True)
    (small.home / "millrace.db").mkdir()
    client.app.state.database.close()  # type: ignore[attr-defined]  # the type of `app` is that of any ASGI application
    for path in PAGES:
        answer = client.get(path)
        assert answer.status_code == 503, path
        assert "cannot be read" in answer.text
        assert 'http-equiv="refresh"' in answer.text
    assert client.get("/nosuch", headers=BROWSER).status_code == 503
    assert client.get("/api/state").status_code == 503


def test_dead_letters_are_listed_with_their_reason(open_client: Any, small: Settings) -> None:
    with writing(small) as connection:
        row = {"consumer_group": "episodes", "topic": "signals", "partition": 1, "value": b"x" * 9, "reason": SCRIPT}
        connection.execute(
            insert(dead_letter), [{**row, "offset": number, "at": float(number)} for number in range(150)]
        )
    letters = signed_in(open_client(small), small).get("/api/state").json()["dead_letters"]
    assert len(letters) == 100
    assert letters[0] == {
        **{name: row[name] for name in row if name != "value"},
        "offset": 149,
        "num_bytes": 9,
        "at": 149.0,
    }
