"""Withdraw and revoke from the dashboard: rights, bodies, and what the answer says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from contracts import revocations
from contracts.assignments import CANARY
from contracts.revocations import Treatment
from runtime.settings import Settings
from services.dashboard.app import create_app
from tests.unit.services.dashboard.test_holds import refuse_all_but_operators, standing
from tests.unit.services.dashboard.test_routes import ORIGIN, csrf_of, sign_in
from tests.worlds.dashboard.databases import reading
from tests.worlds.dashboard.seed import POLICY
from tests.worlds.dashboard.seed_rollout import BLESSED, CANARY_VERSION, seed_rollout

ROUTES: dict[str, dict[str, Any]] = {
    "/api/withdraw": {"version": CANARY_VERSION, "reason": "complaints"},
    "/api/revoke": {"version": CANARY_VERSION, "live": BLESSED, "reason": "complaints", "treatment": "poison"},
}


@pytest.fixture
def client(small: Settings) -> Iterator[TestClient]:
    seed_rollout(small, time.time())
    with TestClient(create_app(small), follow_redirects=False) as opened:
        yield opened


def post(client: TestClient, path: str, **changes: Any) -> Any:
    return client.post(path, json={**ROUTES[path], **changes}, headers={**ORIGIN, "x-csrf-token": csrf_of(client)})


def gone(settings: Settings) -> dict[int, Treatment]:
    with reading(settings) as connection:
        return {version: row.treatment for version, row in revocations.read(connection, POLICY).items()}


def test_an_operator_withdraws_the_canary(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    assert post(client, "/api/withdraw").json() == {"withdrawn": CANARY_VERSION, "left": ["learning", "canary"]}
    assert standing(small)[0][CANARY] == (None, 0.0)
    assert gone(small) == {}
    refused = post(client, "/api/withdraw")
    assert refused.status_code == 409
    assert "no train runs" in refused.json()["error"]["message"]


def test_an_operator_sees_the_price_and_revokes_the_canary(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    told = client.get(f"/api/revoke?version={CANARY_VERSION}", headers=ORIGIN).json()
    assert (told["live"], told["revokes"]) == (BLESSED, [CANARY_VERSION])
    assert told["treatments"].keys() == {"evidence", "poison"}
    assert gone(small) == {}
    did = post(client, "/api/revoke").json()
    assert (did["live"], did["revoked"]) == (BLESSED, [CANARY_VERSION])
    assert gone(small) == {CANARY_VERSION: "poison"}
    assert standing(small)[0][CANARY] == (None, 0.0)


NONSENSE: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/api/withdraw", {"version": 7}, 409),
    ("/api/withdraw", {"version": -1}, 400),
    ("/api/withdraw", {"reason": ""}, 400),
    ("/api/revoke", {"version": BLESSED}, 422),
    ("/api/revoke", {"version": 99}, 422),
    ("/api/revoke", {"live": BLESSED - 1}, 409),
    ("/api/revoke", {"treatment": "both"}, 400),
    ("/api/revoke", {"more": 1}, 400),
)


def test_what_makes_no_sense_is_refused(client: TestClient, small: Settings) -> None:
    sign_in(client, small, "operator")
    before = standing(small)
    for path, content, status in NONSENSE:
        answer = post(client, path, **content)
        assert (answer.status_code, standing(small), gone(small)) == (status, before, {}), (path, content)
        assert answer.json()["error"]["message"]


def test_only_operators_on_the_dashboards_own_pages_decide(client: TestClient, small: Settings) -> None:
    refuse_all_but_operators(client, small, ROUTES)
    client.cookies.clear()
    sign_in(client, small, "app")
    assert client.get(f"/api/revoke?version={CANARY_VERSION}", headers=ORIGIN).status_code == 403
