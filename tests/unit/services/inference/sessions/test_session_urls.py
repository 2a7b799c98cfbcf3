"""Sessions in URLs: the plain routes with a session, and what contradicts the URL is refused by name."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from contracts.keys import create_key
from runtime.database import Database
from tests.unit.services.inference.conftest import Inference

ASKED: list[Any] = [{"role": "user", "content": "hi"}]
PLAIN = {"model": "demo", "messages": ASKED}
LIMITED = {**PLAIN, "max_tokens": 8}


def send(inference: Inference, target: str, body: Any = PLAIN, key: str = "", **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or inference.key}", **headers}
    return httpx.post(f"{inference.url}{target}", json=body, headers=headers, timeout=10.0)


def make(inference: Inference, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = send(inference, "/v1/sessions", fields).json()
    return made


def told(answer: httpx.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def test_every_way_to_ask_works_under_a_session(inference: Inference) -> None:
    for target, body in (
        ("v1/chat/completions", PLAIN),
        ("v1/chat/completions", {**PLAIN, "stream": True}),
        ("v1/completions", {"model": "demo", "prompt": "hi", "max_tokens": 8}),
        ("v1/responses", {"model": "demo", "input": "hi"}),
        ("v1/messages", LIMITED),
    ):
        assert send(inference, f"/sessions/visit-7/{target}", body).status_code == 200, target
    assert [record.session_id for record in inference.logged()] == ["visit-7"] * 5
    assert send(inference, "/sessions/visit-7/v1/messages/count_tokens", LIMITED).json()["input_tokens"] > 0
    assert send(inference, "/sessions/visit-7/tokenize").json()["count"] > 0
    listed = inference.client.with_options(base_url=f"{inference.url}/sessions/visit-7/v1").models.list()
    assert "demo" in {model.id for model in listed}


def test_calls_under_a_url_go_on_from_each_other(inference: Inference) -> None:
    client = inference.client.with_options(base_url=f"{inference.url}/sessions/a/v1")
    first = client.chat.completions.create(model="demo", messages=ASKED)
    more = [
        *ASKED,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "ok"},
    ]
    client.chat.completions.create(model="demo", messages=more)
    assert send(inference, "/sessions/b/v1/messages", LIMITED, **{"x-api-key": inference.key}).status_code == 200
    records = inference.logged()
    assert [record.session_id for record in records] == ["a", "a", "b"]
    assert [record.turn.branch for record in records if record.turn] == ["first", "", "first"]


def test_the_url_of_a_made_session_has_its_task_and_budget_for_any_key_of_its_tenant(inference: Inference) -> None:
    made = make(inference, budget={"calls": 2})
    assert made["base_url"] == f"{inference.url}/sessions/{made['id']}/v1"
    for key in (made["key"], inference.key):
        with openai.OpenAI(base_url=made["base_url"], api_key=key) as client:
            client.chat.completions.create(model="demo", messages=ASKED)
    assert {(record.session_id, record.task) for record in inference.logged()} == {(made["id"], made["task"])}
    target = f"/sessions/{made['id']}/v1/chat/completions"
    assert told(send(inference, target)) == (403, None, "session_over")
    assert send(inference, "/v1/chat/completions").status_code == 200


def test_an_ended_session_answers_nobody_at_its_url(inference: Inference) -> None:
    made = make(inference)
    target = f"/sessions/{made['id']}/v1/chat/completions"
    assert send(inference, target).status_code == 200
    headers = {"authorization": f"Bearer {inference.key}"}
    httpx.delete(f"{inference.url}/v1/sessions/{made['id']}", headers=headers)
    assert told(send(inference, target)) == (403, None, "session_over")
    assert len(inference.logged()) == 1


@pytest.mark.usefixtures("alone")
def test_another_tenant_does_not_reach_the_session(inference: Inference, database: Database) -> None:
    made = make(inference, budget={"calls": 1})
    with database.transaction() as connection:
        stranger = create_key(connection, "app", "stranger")
    target = f"/sessions/{made['id']}/v1/chat/completions"
    for _ in range(2):
        assert send(inference, target, key=stranger).status_code == 200
    assert {record.tenant for record in inference.logged()} == {"stranger"}
    assert send(inference, target).status_code == 200  # nothing was counted


def test_what_contradicts_the_url_is_refused_by_name(inference: Inference) -> None:
    made, other = make(inference), make(inference)
    target = f"/sessions/{made['id']}/v1/chat/completions"
    header = {"x-millrace-session": "else"}
    assert told(send(inference, target, **header)) == (400, "x-millrace-session", "invalid_request")
    assert told(send(inference, target, {**PLAIN, "metadata": {"session_id": "else"}}))[:2] == (
        400,
        "metadata.session_id",
    )
    assert told(send(inference, target, {**PLAIN, "metadata": {"task": "else"}}))[:2] == (400, "metadata.task")
    assert told(send(inference, target, key=other["key"])) == (403, "session_id", "other_session")
    assert told(send(inference, "/sessions/free/tokenize", key=other["key"])) == (403, "session_id", "other_session")
    assert inference.logged() == []
    same = {**PLAIN, "metadata": {"session_id": made["id"]}}
    assert send(inference, target, same, **{"x-millrace-session": made["id"]}).status_code == 200


@pytest.mark.parametrize("name", ["", "a%00b", "%C3%A4", "%0a", "x" * 129])
def test_an_id_that_no_url_may_have_is_refused(inference: Inference, name: str) -> None:
    assert told(send(inference, f"/sessions/{name}/v1/chat/completions")) == (400, "session_id", "invalid_request")


def test_an_id_may_have_an_encoded_slash(inference: Inference) -> None:
    assert send(inference, "/sessions/a%2Fv1%2Fmodels/v1/chat/completions").status_code == 200
    assert [record.session_id for record in inference.logged()] == ["a/v1/models"]


@pytest.mark.parametrize(
    "target",
    ["v1/sessions", "v1/feedback", "hot_load/v1/models/hot_load", "v1/chat/completionsx", "", "sessions/b/v1/models"],
)
def test_nothing_else_is_under_a_session(inference: Inference, target: str) -> None:
    assert send(inference, f"/sessions/a/{target}", key=inference.operator.api_key).status_code == 404


def test_the_same_request_in_two_sessions_is_two_requests(inference: Inference) -> None:
    """The tries of a group ask the same, each at its own URL."""
    for headers in ({"idempotency-key": "step-1"}, {"x-stainless-retry-count": "0"}):
        for session in ("a", "b"):
            answer = send(inference, f"/sessions/{session}/v1/chat/completions", **headers)
            assert answer.status_code == 200
            assert "x-millrace-replayed" not in answer.headers
    again = send(inference, "/sessions/b/v1/chat/completions", **{"idempotency-key": "step-1"})
    assert again.headers["x-millrace-replayed"] == "true"
    records = inference.logged()
    assert [record.session_id for record in records] == ["a", "b", "a", "b"]
    assert len({record.attempt.request for record in records if record.attempt}) == 2


def test_the_key_of_a_session_reads_nothing_that_others_wrote(inference: Inference) -> None:
    made = make(inference)
    headers = {"authorization": f"Bearer {made['key']}"}
    for target in ("", "/chatcmpl-1", "/chatcmpl-1/messages"):
        for url in ("", f"/sessions/{made['id']}"):
            answer = httpx.get(f"{inference.url}{url}/v1/chat/completions{target}", headers=headers, timeout=10.0)
            assert answer.status_code == 403
            assert "shows no stored completions" in answer.json()["error"]["message"]


def test_a_session_takes_no_place_among_the_pairs_of_metadata(inference: Inference) -> None:
    made = make(inference, group="issue 812")
    body = {**PLAIN, "metadata": {f"pair {number}": "x" for number in range(16)}}
    assert send(inference, f"/sessions/{made['id']}/v1/chat/completions", body).status_code == 200
    (record,) = inference.logged()
    assert len(record.open().metadata) >= 16
