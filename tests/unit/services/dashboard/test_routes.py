import hashlib
import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from contracts import assignments
from contracts.keys import Role, create_key
from contracts.ledger import generation_counts, trained_versions
from runtime.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.signin.repository import COOKIE, Sessions
from tests.worlds.dashboard.databases import reading, writing
from tests.worlds.dashboard.seed import HOSTILE, NUM_VERSIONS, POLICY, key_of

ORIGIN = {"origin": "http://testserver"}
LIVE = NUM_VERSIONS - 1
PAGES = ("/", "/policies", f"/policies/{LIVE}", "/generations", f"/generations/{key_of(30)}/0", "/ledger")


@pytest.fixture
def client(small: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(small), follow_redirects=False) as opened:
        yield opened


def sign_in(client: TestClient, settings: Settings, role: Role) -> Any:
    with writing(settings) as connection:
        key = create_key(connection, role)
    return client.post("/api/login", data={"key": key}, headers=ORIGIN)


def csrf_of(client: TestClient) -> str:
    found = re.search(r'data-csrf="([^"]+)"', client.get("/").text)
    assert found
    return html.unescape(found[1])


def roll_back(client: TestClient, *, headers: dict[str, str] | None = None, **content: Any) -> Any:
    body = {"live": LIVE, "reason": "complaints", **content}
    sent = {**ORIGIN, "x-csrf-token": csrf_of(client)} if headers is None else headers
    return client.post("/api/rollback", json=body, headers=sent)


def live_of(settings: Settings) -> int | None:
    with reading(settings) as connection:
        return assignments.read(connection, POLICY)["live"].version


def test_without_a_session_there_is_a_form_and_no_data(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert 'action="/api/login"' in page.text
    assert "data-csrf" not in page.text
    for path in ("/api/state", "/events"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_a_wrong_key_is_refused(client: TestClient) -> None:
    for key in ("", "mr-operator-000000000000-00", "nonsense", "é"):
        answer = client.post("/api/login", data={"key": key}, headers=ORIGIN)
        assert answer.status_code == 401
        assert COOKIE not in answer.cookies
    assert client.get("/api/state").status_code == 401


@pytest.mark.parametrize("role", ["app", "operator"])
def test_a_key_opens_the_page(client: TestClient, small: Settings, role: Role) -> None:
    answer = sign_in(client, small, role)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert f'data-role="{role}"' in client.get("/").text
    assert client.get("/api/state").json()["live"] == LIVE


def test_signing_out_ends_the_session(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "app")
    session_id = client.cookies[COOKIE]
    assert client.post("/api/logout", headers=ORIGIN).status_code == 303
    client.cookies.set(COOKIE, session_id)
    assert client.get("/api/state").status_code == 401


def test_the_link_that_was_printed_works_once_and_only_to_look(client: TestClient, small: Settings) -> None:
    database = small.database()
    link = f"/?token={Sessions(database).make_link()}"
    database.close()
    assert client.get("/?token=wrong").status_code == 401
    assert client.get(link).status_code == 303
    assert client.get("/api/state").status_code == 200
    assert client.get(link).headers["location"] == "/"
    assert roll_back(client).status_code == 403
    client.cookies.clear()
    used = client.get(link)
    assert used.status_code == 401
    assert "this link was used already" in used.text
    assert "millrace link --home" in used.text


def test_a_key_in_the_address_opens_nothing(client: TestClient, small: Settings) -> None:
    with writing(small) as connection:
        key = create_key(connection, "operator")
    assert "data-csrf" not in client.get(f"/?key={key}").text
    assert client.get(f"/api/state?key={key}").status_code == 401


def test_an_operator_rolls_back(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    answer = roll_back(client)
    did = answer.json()
    assert (answer.status_code, did["live"], did["revoked"]) == (200, LIVE - 1, [LIVE, LIVE + 1])
    assert did["says"][0].startswith(f"Users get v{LIVE - 1} instead of v{LIVE}")
    assert live_of(small) == LIVE - 1
    decision = client.get("/api/state").json()["decisions"][0]
    assert decision["reason"] == "complaints"
    assert decision["writer"].startswith("operator ")


def promote(client: TestClient, **content: Any) -> Any:
    body = {"live": LIVE, "to": NUM_VERSIONS, "reason": "a demo", **content}
    return client.post("/api/promote", json=body, headers={**ORIGIN, "x-csrf-token": csrf_of(client)})


def test_an_operator_promotes_a_published_version(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    answer = promote(client)
    did = answer.json()
    assert (answer.status_code, did["live"], did["revoked"]) == (200, NUM_VERSIONS, [])
    assert did["says"] == [f"Users get v{NUM_VERSIONS} instead of v{LIVE}."]
    assert live_of(small) == NUM_VERSIONS


def test_promoting_a_lower_version_is_a_rollback_and_says_so(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    did = promote(client, to=7).json()
    assert (did["live"], did["revoked"]) == (7, [8, 9, 10])
    says = " ".join(did["says"])
    assert f"Users get v7 instead of v{LIVE}, and training goes on from v7." in says
    assert "Revoked for good: v8, v9, v10." in says
    assert live_of(small) == 7
    with reading(small) as connection:
        arms = assignments.read(connection, POLICY)
    assert (arms["training"].version, arms["candidate"].version) == (7, None)
    assert promote(client, live=7, to=8).json()["error"]["code"] == "version_revoked"


BAD_PROMOTIONS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"to": 99}, 404),
    ({"to": 6}, 422),
    ({"live": LIVE + 1, "to": 7}, 409),
    ({"live": 1}, 409),
    ({"reason": ""}, 400),
)


def test_a_promotion_that_makes_no_sense_is_refused(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    for content, status in BAD_PROMOTIONS:
        assert promote(client, **content).status_code == status, content
        assert live_of(small) == LIVE, content


def test_an_app_key_may_not_promote(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "app")
    assert promote(client).status_code == 403
    assert live_of(small) == LIVE


def test_an_operator_names_the_version(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    assert roll_back(client, to=2).json()["live"] == 2


def test_the_preview_of_a_rollback_shows_its_effects_and_changes_nothing(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    shown = client.get("/api/rollback?to=5", headers=ORIGIN).json()
    assert (shown["live"], shown["to"], shown["revokes"]) == (LIVE, 5, [6, 7, 8, 9, 10])
    with reading(small) as connection:
        counts = generation_counts(connection).states
        learned = trained_versions(connection)
    effects = shown["effects"]
    assert effects["num_learned"] == counts["trained"] == len(learned)
    assert effects["num_undone"] == sum(version > 5 for version in learned.values()) > 0
    says = " ".join((*shown["says"], *shown["treatments"].values()))
    assert "v6, v7, v8, v9, v10" in says
    assert f"{effects['num_undone']:,} of {effects['num_learned']:,} learned samples are undone" in says
    assert f"{effects['num_said']:,}, of which {effects['num_said_waiting']:,} wait" in says
    assert "quarantined(rollback)" in shown["treatments"]["poison"]
    assert "learned again" in shown["treatments"]["evidence"]
    assert live_of(small) == LIVE
    assert client.get("/api/state").json()["live"] == LIVE


def test_a_rollback_that_makes_no_sense_is_not_shown(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    for version, status in (("6", 422), ("99", 422), ("-1", 400), ("x", 400)):
        assert client.get(f"/api/rollback?to={version}", headers=ORIGIN).status_code == status, version


def test_without_a_session_there_is_no_preview_of_a_rollback(client: TestClient) -> None:
    assert client.get("/api/rollback", headers=ORIGIN).status_code == 401


def test_the_operator_chooses_poison_and_the_versions(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    assert roll_back(client, to=5, treatment="poison", revoke=[8]).json()["revoked"] == [8, 9, 10]
    rows = {row["version"]: row for row in client.get("/api/state").json()["versions"]}
    assert (rows[9]["status"], rows[9]["treatment"]) == ("revoked", "poison")
    assert rows[9]["revoked"].endswith(": complaints")
    assert (rows[7]["status"], rows[7]["revoked"], rows[5]["status"]) == ("rolled back", "", "live")
    assert "poison" in client.get("/policies/9").text
    assert "it never serves again" not in client.get("/policies/7").text


def test_a_revoked_version_comes_back_by_no_door(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    roll_back(client, to=5)
    for answer in (
        promote(client, live=5, to=LIVE),
        promote(client, live=5, to=NUM_VERSIONS),
        roll_back(client, live=5, to=LIVE),
    ):
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "version_revoked"
        assert "complaints" in answer.json()["error"]["message"]
    assert live_of(small) == 5


def test_of_two_operators_at_once_one_is_told_to_look_again(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    answers = [roll_back(client, to=5), roll_back(client, to=7, treatment="poison")]
    assert [answer.status_code for answer in answers] == [200, 409]
    assert "check the versions again" in answers[1].json()["error"]["message"]
    assert live_of(small) == 5


def test_an_app_key_may_not_roll_back(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "app")
    answer = roll_back(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
    assert live_of(small) == LIVE


def test_without_a_session_there_is_no_rollback(client: TestClient, small: Settings) -> None:
    assert roll_back(client, headers=ORIGIN).status_code == 401
    assert live_of(small) == LIVE


FORGED: tuple[dict[str, str], ...] = (
    {},
    {"origin": "http://testserver"},
    {"origin": "http://testserver", "x-csrf-token": "wrong"},
    {"origin": "http://evil.example", "x-csrf-token": "TOKEN"},
    {"origin": "http://testserver", "sec-fetch-site": "cross-site", "x-csrf-token": "TOKEN"},
    {"x-csrf-token": "TOKEN"},
)


def test_a_forged_request_is_refused(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    for headers in FORGED:
        sent = {name: value.replace("TOKEN", csrf_of(client)) for name, value in headers.items()}
        assert roll_back(client, headers=sent).status_code == 403, headers
        assert live_of(small) == LIVE, headers


BAD_ROLLBACKS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"treatment": "mercy"}, 400),
    ({"revoke": [3], "to": 5}, 422),
    ({"revoke": [77], "to": 5}, 422),
    ({"live": LIVE - 1}, 409),
    ({"to": 6}, 422),
    ({"to": LIVE}, 422),
    ({"reason": ""}, 400),
    ({"live": "nine"}, 400),
    ({"extra": 1}, 400),
)


def test_a_rollback_that_makes_no_sense_is_refused(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    for content, status in BAD_ROLLBACKS:
        answer = roll_back(client, **content)
        assert answer.status_code == status, content
        assert answer.json()["error"]["message"]
        assert live_of(small) == LIVE, content


def test_every_answer_forbids_what_the_page_does_not_need(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "app")
    for path in (*PAGES, "/api/state", "/static/page.js", "/missing", "/generations/x/y", "/policies/99"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_holds_no_script_style_or_foreign_address(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    texts = [client.get(path).text for path in PAGES]
    for page in (*texts, client.post("/api/login", headers=ORIGIN).text):
        assert not re.search(r"<script(?![^>]* src=\"/static/)|<style|<[^>]*\s(on\w+|style)=|https?://", page)


def test_hostile_text_never_becomes_markup(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    assert roll_back(client, reason=HOSTILE).status_code == 200
    assert "<img" not in client.get("/").text
    answer = client.get("/api/state")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["decisions"][0]["reason"] == HOSTILE


def test_the_vendored_files_are_those_that_stand_beside_them(client: TestClient) -> None:
    readme = client.get("/static/uplot/README.md").text
    named = re.findall(r"sha256  ([0-9a-f]{64})  (\S+)", readme)
    assert [name for _, name in named] == ["uPlot.iife.min.js", "uPlot.min.css"]
    for digest, name in named:
        assert hashlib.sha256(client.get(f"/static/uplot/{name}").content).hexdigest() == digest
    assert "MIT" in client.get("/static/uplot/LICENSE").text
