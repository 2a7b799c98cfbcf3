"""Freeze, pin, resume and hold-out from the dashboard: rights, bodies, and what the answer says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient

from contracts import assignments, holds
from contracts.assignments import HOLDOUT
from contracts.assignments import LIVE as LIVE_ARM
from contracts.holds import Hold
from runtime.settings import Settings
from services.dashboard.app import create_app
from tests.unit.services.dashboard.test_routes import LIVE, ORIGIN, csrf_of, promote, roll_back, sign_in
from tests.worlds.dashboard.databases import reading
from tests.worlds.dashboard.seed import POLICY

ROUTES: dict[str, dict[str, Any]] = {
    "/api/freeze": {"reason": "the launch", "seconds": 60},
    "/api/pin": {"reason": "the launch", "version": 7, "live": LIVE, "seconds": 60},
    "/api/resume": {"reason": "over"},
    "/api/holdout": {"reason": "measure", "version": 0, "share": 0.02},
}


@pytest.fixture
def client(small: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(small), follow_redirects=False) as opened:
        yield opened


def post(client: TestClient, path: str, **changes: Any) -> Any:
    body = {name: value for name, value in {**ROUTES[path], **changes}.items() if value != "left out"}
    return client.post(path, json=body, headers={**ORIGIN, "x-csrf-token": csrf_of(client)})


def standing(settings: Settings) -> tuple[dict[str, tuple[int | None, float]], Hold | None]:
    with reading(settings) as connection:
        arms = assignments.read(connection, POLICY)
        held = holds.read(connection, POLICY, time.time())
    return {name: (arm.version, arm.share) for name, arm in arms.items()}, held


def test_an_operator_freezes_and_resumes(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    before, _ = standing(small)
    did = post(client, "/api/freeze").json()
    assert (did["kind"], did["version"]) == ("freeze", None)
    assert did["until"] == pytest.approx(time.time() + 60.0, abs=30.0)
    assert "frozen until" in did["says"]
    arms, held = standing(small)
    assert arms == before
    assert held is not None
    assert (held.reason, held.until) == ("the launch", did["until"])
    assert held.writer.startswith("operator ")
    refused = promote(client)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "held")
    assert "millrace policy resume" in refused.json()["error"]["message"]
    assert post(client, "/api/resume").json() == {"ended": "freeze", "version": None}
    assert standing(small)[1] is None
    assert promote(client).status_code == 200


def test_an_operator_pins_and_a_rollback_ends_it(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    did = post(client, "/api/pin").json()
    assert (did["kind"], did["version"]) == ("pin", 7)
    assert standing(small)[0][LIVE_ARM] == (7, 1.0)
    assert roll_back(client, live=7, to=5).status_code == 200
    arms, held = standing(small)
    assert (arms[LIVE_ARM][0], held) == (5, None)


def test_an_operator_sets_and_ends_the_hold_out(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    assert post(client, "/api/holdout").json() == {"version": 0, "share": 0.02}
    assert standing(small)[0][HOLDOUT] == (0, 0.02)
    assert post(client, "/api/holdout", version=None, share=None).json() == {"version": None, "share": 0.0}
    assert standing(small)[0][HOLDOUT] == (None, 0.0)


NONSENSE: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/api/freeze", {"seconds": 0}, 400),
    ("/api/freeze", {"seconds": 31 * 86_400}, 400),
    ("/api/freeze", {"seconds": "2h"}, 400),
    ("/api/freeze", {"reason": ""}, 400),
    ("/api/freeze", {"until": 1}, 400),
    ("/api/pin", {"seconds": None}, 400),
    ("/api/pin", {"seconds": "left out"}, 400),
    ("/api/pin", {"version": 99}, 404),
    ("/api/pin", {"version": 6}, 422),
    ("/api/pin", {"version": -1}, 400),
    ("/api/pin", {"live": LIVE - 1}, 409),
    ("/api/resume", {}, 409),
    ("/api/holdout", {"share": 0.3}, 400),
    ("/api/holdout", {"share": None}, 422),
    ("/api/holdout", {"version": None}, 422),
    ("/api/holdout", {"version": 99}, 404),
    ("/api/holdout", {"version": 6}, 422),
    ("/api/holdout", {"version": None, "share": None}, 409),
)


def test_what_makes_no_sense_is_refused(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    before = standing(small)
    for path, content, status in NONSENSE:
        answer = post(client, path, **content)
        assert (answer.status_code, standing(small)) == (status, before), (path, content)
        assert answer.json()["error"]["message"]


def test_only_operators_on_the_dashboards_own_pages_decide(client: TestClient, small: Settings) -> None:
    refuse_all_but_operators(client, small, ROUTES)


def refuse_all_but_operators(client: TestClient, small: Settings, routes: Mapping[str, Any]) -> None:
    before = standing(small)
    for path, body in routes.items():
        assert client.post(path, json=body, headers=ORIGIN).status_code == 401, path
    sign_in(client, small, "app")
    for path, body in routes.items():
        headers = {**ORIGIN, "x-csrf-token": csrf_of(client)}
        assert client.post(path, json=body, headers=headers).status_code == 403, path
    client.cookies.clear()
    sign_in(client, small, "operator")
    token = {"x-csrf-token": csrf_of(client)}
    for path, body in routes.items():
        for headers in (ORIGIN, token, {"origin": "http://evil.example", **token}):
            assert client.post(path, json=body, headers=headers).status_code == 403, (path, headers)
    assert standing(small) == before
