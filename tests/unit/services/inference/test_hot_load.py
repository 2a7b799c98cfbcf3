"""The hosted hot-load contract, as a trainer uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Response
from sqlalchemy import select
from starlette.responses import JSONResponse

from contracts.assignments import CANDIDATE, LIVE, TRAINING, read
from contracts.errors import InvalidRequest
from contracts.holds import freeze
from contracts.revocations import revoke
from contracts.tables import assignment_change
from runtime.database import Database
from services.inference.app import create_app
from services.inference.engine.state import ArmProblem, Health
from services.inference.hot_load import describe, version_of
from services.inference.routes import HOT_LOAD as PATH
from tests.each_case import each_case
from tests.unit.services.inference.test_versions_asked import assign
from tests.unit.services.inference.world import FakeEngine, Stage, StubbornLog, make_base
from tests.unit.services.serving import make_home, make_key, serve

DELTA = {"previous_snapshot_identity": "v6", "compression_format": "arc_v2", "checksum_format": "alder32"}


class FollowingEngine(FakeEngine):
    """Says in /state which version it holds, and what stops it from following."""

    def __init__(self) -> None:
        super().__init__("{ok}", version=6)
        self.problems: dict[str, dict[str, Any]] = {}

    async def health(self) -> Response:
        content = {
            "status": "serving" if self.serving else "restarting",
            "versions": {"live": self.version, "candidate": None},
            "restarts": 0,
            "engine": "fake/1",
            "dtype": "float32",
            "problems": self.problems,
        }
        return JSONResponse(content, status_code=200 if self.serving else 503)


class Pool:
    """Inference over HTTP, asked by a trainer."""

    def __init__(self, url: str, key: str, engine: FollowingEngine) -> None:
        self.engine = engine
        self.url = f"{url}{PATH}"
        self.headers = {"authorization": f"Bearer {key}", "fireworks-model": "demo"}

    def signal(self, identity: str, delta: dict[str, Any] | None = None, **more: Any) -> httpx.Response:
        body = {"identity": identity, **({"incremental_snapshot_metadata": delta} if delta else {}), **more}
        return httpx.post(self.url, json=body, headers=self.headers)

    def state(self) -> Any:
        return httpx.get(self.url, headers=self.headers).raise_for_status().json()

    def stage(self) -> str:
        [replica] = self.state()["replicas"]
        return str(replica["loading_state"]["stage"])

    def has_loaded(self, identity: str) -> bool:
        """What the contract's documentation tells a trainer to wait for."""
        replicas = self.state()["replicas"]
        return bool(replicas) and all(
            replica["readiness"] and replica["current_snapshot_identity"] == identity for replica in replicas
        )


@pytest.fixture
def pool(tmp_path: Path, database: Database, stage: Stage) -> Iterator[Pool]:
    make_base(tmp_path / "base")
    stage.engine = engine = FollowingEngine()
    assign(database, 6)
    key, settings = make_key(database, "operator"), make_home(tmp_path, stage.url)
    service = create_app(settings, event_log=StubbornLog(tmp_path / "log"), list_versions=lambda: [0, 6, 7, 8])
    with serve(service) as url:
        yield Pool(url, key, engine)


def live(database: Database) -> int | None:
    with database.snapshot() as connection:
        return read(connection, "demo")[LIVE].version


def num_moves(database: Database) -> int:
    with database.snapshot() as connection:
        return len(connection.execute(select(assignment_change)).all())


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def test_a_trainer_signals_and_waits_until_the_engine_has_followed(pool: Pool, database: Database) -> None:
    assert pool.has_loaded("v6")

    answer = pool.signal("v7", DELTA, reset_prompt_cache=True)

    assert (answer.status_code, answer.json()) == (200, {"accepted": True, "identity": "v7", "already_current": False})
    assert live(database) == 7
    assert pool.state() == {
        "identity": "v7",
        "replicas": [
            {
                "readiness": True,
                "readiness_reason": None,
                "current_snapshot_identity": "v6",
                "loading_state": {"stage": "loading"},
            }
        ],
    }
    pool.engine.version = 7
    assert pool.has_loaded("v7")
    assert pool.stage() == "ready"


def test_the_move_names_who_made_it(pool: Pool, database: Database) -> None:
    pool.signal("v7")

    with database.snapshot() as connection:
        last = connection.execute(select(assignment_change).order_by(assignment_change.c.epoch.desc())).first()
    assert last is not None
    assert (last.version, last.share, last.writer, last.reason) == (
        7, 1.0, pool.headers["authorization"].split("-")[2], "hot_load",
    )  # fmt: skip


def test_a_signal_that_is_sent_again_moves_nothing(pool: Pool, database: Database) -> None:
    first, second = pool.signal("v7", DELTA), pool.signal("v7", DELTA)

    assert [answer.json()["already_current"] for answer in (first, second)] == [False, True]
    assert num_moves(database) == 2


def test_a_full_snapshot_may_skip_versions(pool: Pool, database: Database) -> None:
    assert pool.signal("v8").status_code == 200
    assert live(database) == 8


def test_a_lower_version_is_a_rollback_and_the_answer_says_so(pool: Pool, database: Database) -> None:
    for version in (7, 8):
        assert "revoked" not in pool.signal(f"v{version}").json()

    answer = pool.signal("v6")

    assert answer.json() == {"accepted": True, "identity": "v6", "already_current": False, "revoked": ["v7", "v8"]}
    with database.snapshot() as connection:
        arms = read(connection, "demo")
        assert {name: arms[name].version for name in (LIVE, TRAINING, CANDIDATE)} == {
            LIVE: 6,
            TRAINING: 6,
            CANDIDATE: None,
        }
    assert refusal(pool.signal("v8"))[:2] == (409, "version_revoked")


def test_a_lower_version_that_nobody_ever_accepted_is_no_way_back(pool: Pool, database: Database) -> None:
    pool.signal("v8")
    assert refusal(pool.signal("v7")) == (422, "invalid_value", "to")
    assert live(database) == 8


def test_while_the_arms_are_held_only_the_way_back_is_open(pool: Pool, database: Database) -> None:
    pool.signal("v7")
    with database.transaction() as connection:
        freeze(connection, policy="demo", until=None, writer="ann", reason="the launch")
    answer = pool.signal("v8")
    assert refusal(answer)[:2] == (409, "held")
    assert "millrace policy resume" in answer.json()["error"]["message"]
    assert live(database) == 7
    assert pool.signal("v6").status_code == 200
    assert live(database) == 6


def test_a_version_that_the_store_lacks_is_refused_with_what_there_is(pool: Pool, database: Database) -> None:
    answer = pool.signal("v9")

    assert refusal(answer) == (404, "not_found", "identity")
    assert "it has v0, v6, v7, v8" in answer.json()["error"]["message"]
    assert live(database) == 6


def test_without_a_list_of_its_own_the_weight_store_of_the_home_is_asked(
    tmp_path: Path, database: Database, stage: Stage
) -> None:
    make_base(tmp_path / "base")
    stage.engine = engine = FollowingEngine()
    key, log = make_key(database, "operator"), StubbornLog(tmp_path / "log")
    with serve(create_app(make_home(tmp_path, stage.url), event_log=log)) as url:
        answer = Pool(url, key, engine).signal("v7")

    assert refusal(answer) == (404, "not_found", "identity")
    assert "'demo' has no v7; it has no versions" in answer.json()["error"]["message"]


def test_a_change_of_what_is_not_live_is_a_conflict(pool: Pool, database: Database) -> None:
    assign(database, 7)

    answer = pool.signal("v8", DELTA)

    assert refusal(answer) == (409, "conflict", "incremental_snapshot_metadata.previous_snapshot_identity")
    assert "v7 is live, not v6" in answer.json()["error"]["message"]
    assert live(database) == 7


@each_case("identity", ["7", "step-7", "v", "v07", "V7", "v7/", "v-1", "", "v7\n", "v" + "1" * 19])
def test_an_identity_is_the_name_of_a_version_and_nothing_else(identity: str) -> None:
    with pytest.raises(InvalidRequest, match="an identity is the name of a version") as caught:
        version_of(identity, "identity")

    assert (caught.value.status, caught.value.param) == (400, "identity")


def test_everything_else_in_a_signal_is_refused_by_name(pool: Pool, database: Database) -> None:
    delta = "incremental_snapshot_metadata"
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"identity": "step-7"}, "invalid_request", "identity"),
        ({"identity": 7}, "invalid_request", "identity"),
        ({}, "invalid_request", "identity"),
        ({"identity": "v7", "bucket": "s3://elsewhere"}, "invalid_request", None),
        ({"identity": "v7", "reset_prompt_cache": "sometimes"}, "invalid_request", "reset_prompt_cache"),
        ({"identity": "v7", delta: {}}, "invalid_request", f"{delta}.previous_snapshot_identity"),
        (
            {"identity": "v7", delta: DELTA | {"previous_snapshot_identity": "6"}},
            "invalid_request",
            f"{delta}.previous_snapshot_identity",
        ),
        (
            {"identity": "v7", delta: DELTA | {"compression_format": "arc_v3"}},
            "unsupported_parameter",
            f"{delta}.compression_format",
        ),
        (
            {"identity": "v7", delta: DELTA | {"checksum_format": "md5"}},
            "unsupported_parameter",
            f"{delta}.checksum_format",
        ),
    ]
    for body, code, param in cases:
        answer = httpx.post(pool.url, json=body, headers=pool.headers)
        assert refusal(answer) == (400, code, param), body
    assert "arc_v2, not 'arc_v3'" in pool.signal("v7", DELTA | {"compression_format": "arc_v3"}).text
    assert live(database) == 6


def test_only_operators_signal_and_look(pool: Pool, database: Database) -> None:
    app = {"authorization": f"Bearer {make_key(database)}"}

    for headers, status in ((app, 403), ({}, 401)):
        assert httpx.post(pool.url, json={"identity": "v7"}, headers=headers).status_code == status
        assert httpx.get(pool.url, headers=headers).status_code == status
    assert live(database) == 6


def test_where_nothing_is_live_nothing_can_be_replaced(pool: Pool, database: Database) -> None:
    assign(database, None)

    answer = pool.signal("v7")

    assert refusal(answer)[:2] == (404, "not_found")
    assert "millrace up" in answer.json()["error"]["message"]


def test_a_version_that_the_engine_refuses_is_an_error_and_the_old_one_serves_on(pool: Pool) -> None:
    pool.signal("v7", DELTA)
    pool.engine.problems = {
        "live": {"version": 7, "code": "payload_hash", "message": "damaged", "attempts": 1, "retry_at": 0.0}
    }

    assert pool.state()["replicas"] == [
        {
            "readiness": True,
            "readiness_reason": "damaged",
            "current_snapshot_identity": "v6",
            "loading_state": {"stage": "error"},
        }
    ]


def test_an_engine_that_does_not_serve_is_not_ready(pool: Pool, stage: Stage) -> None:
    pool.engine.serving = False
    [replica] = pool.state()["replicas"]
    assert (replica["readiness"], replica["readiness_reason"]) == (False, "the engine is restarting")
    assert (replica["current_snapshot_identity"], replica["loading_state"]) == ("v6", {"stage": "loading"})

    stage.engine = _Silent()
    [replica] = pool.state()["replicas"]
    assert (replica["readiness"], replica["current_snapshot_identity"]) == (False, None)
    assert replica["loading_state"] == {"stage": "pending"}
    assert "state cannot be read" in replica["readiness_reason"]


class _Silent(FakeEngine):
    """Another server at the engine's address."""

    def __init__(self) -> None:
        super().__init__("")

    async def health(self) -> Response:
        return Response()


@each_case(
    ("health", "stage", "ready"),
    [
        (Health("serving", {"live": 7}), "ready", True),
        (Health("serving", {"live": 6}), "loading", True),
        (Health("serving", {"live": 6}, {"live": ArmProblem(7, "unavailable", "away")}), "loading", True),
        (Health("serving", {"live": 6}, {"assignments": ArmProblem(None, "unavailable", "away")}), "loading", True),
        (Health("serving", {"live": 6}, {"live": ArmProblem(7, "wrong_base", "no")}), "error", True),
        (Health("serving", {"live": 5}, {"live": ArmProblem(6, "wrong_base", "no")}), "loading", True),
        (Health("serving", {"live": 7}, {"candidate": ArmProblem(8, "wrong_base", "no")}), "ready", True),
        (Health("starting", {"live": None}), "loading", False),
        (Health("failed", {"live": 7}), "error", False),
    ],
)
def test_an_engine_is_described_by_what_it_holds_and_what_is_wanted(health: Health, stage: str, ready: bool) -> None:
    replica = describe(health, 7)

    assert (replica["loading_state"], replica["readiness"]) == ({"stage": stage}, ready)


def test_a_revoked_version_does_not_come_back_by_this_door(pool: Pool, database: Database) -> None:
    with database.transaction() as connection:
        revoke(connection, "demo", [7], treatment="poison", writer="ann", reason="bought votes")
    answer = pool.signal("v7")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "version_revoked"
    assert "bought votes" in answer.json()["error"]["message"]
    assert pool.signal("v8").status_code == 200
