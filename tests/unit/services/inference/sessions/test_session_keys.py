"""Sessions with a key of their own: made, used up, ended, and never more than the key that made them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from contracts import agent_sessions
from contracts.keys import create_key, find_key, revoke_keys
from contracts.turns import SessionTurn
from runtime.database import Database
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.serving import wait_until

ASKED: list[Any] = [{"role": "user", "content": "hi"}]
MORE = {"role": "user", "content": "ok"}
AGENTS: list[openai.OpenAI] = []


def call(inference: Inference, method: str, path: str = "", key: str = "", **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or inference.key}"}
    return httpx.request(method, f"{inference.url}/v1/sessions{path}", headers=headers, timeout=10.0, **fields)


def make(inference: Inference, **fields: Any) -> dict[str, Any]:
    answer = call(inference, "POST", json=fields)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture(autouse=True)
def agents() -> Iterator[None]:
    """Closes the clients of a test."""
    yield
    while AGENTS:
        AGENTS.pop().close()


def agent(made: dict[str, Any]) -> openai.OpenAI:
    """An unmodified client that knows a URL and a key, and nothing of sessions."""
    AGENTS.append(openai.OpenAI(base_url=made["base_url"], api_key=made["key"], max_retries=0))
    return AGENTS[-1]


def ask(client: openai.OpenAI, messages: list[Any] = ASKED, **fields: Any) -> Any:
    return client.chat.completions.create(model="demo", messages=messages, **fields)


def refusal(client: openai.OpenAI, **fields: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as raised:
        ask(client, **fields)
    return raised.value


def test_all_calls_with_its_key_are_one_session(inference: Inference) -> None:
    made = make(inference)
    assert (made["object"], made["used_calls"], made["ended_at"]) == ("session", 0, None)
    client = agent(made)
    first = ask(client)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    ask(client, [*ASKED, said, MORE])
    records = inference.logged()
    assert {record.session_id for record in records} == {made["id"]}
    assert {record.task for record in records} == {made["task"]}
    assert [record.turn.branch for record in records if record.turn] == ["first", ""]
    assert isinstance(records[1].turn, SessionTurn)
    assert records[1].turn.parent == records[0].key
    shown = call(inference, "GET", f"/{made['id']}").json()
    assert shown["used_calls"] == 2
    assert shown["used_tokens"] == sum(len(record.open().completion_ids) // 4 for record in records)
    assert "key" not in shown


def test_its_group_is_in_every_record(inference: Inference) -> None:
    made = make(inference, group="try-7")
    assert (made["group"], make(inference)["group"]) == ("try-7", None)
    ask(agent(made))
    error = refusal(agent(made), metadata={"session_group": "other"})
    assert (error.status_code, error.param) == (400, "metadata.session_group")
    ask(inference.client, metadata={"session_id": "s", "session_group": "named"})
    ask(inference.client, extra_headers={"x-millrace-session": "t", "x-millrace-session-group": "headed"})
    ask(inference.client, metadata={"session_id": "u"})
    groups = [record.turn.group for record in inference.logged() if record.turn]
    assert groups == ["try-7", "named", "headed", None]


def test_a_budget_of_calls_is_kept(inference: Inference) -> None:
    client = agent(make(inference, budget={"calls": 2}))
    ask(client)
    list(ask(client, stream=True))
    error = refusal(client)
    assert (error.status_code, error.code) == (403, "session_over")
    assert "2 calls" in error.message
    assert len(inference.logged()) == 2


def test_a_budget_of_tokens_shortens_the_last_answer(inference: Inference) -> None:
    made = make(inference, budget={"tokens": 20})
    client = agent(made)
    lengths = [ask(client).usage.completion_tokens, ask(client).usage.completion_tokens]
    assert lengths[0] == len(inference.engine.answer)
    assert sum(lengths) == 20
    assert "20 tokens" in refusal(client).message
    assert call(inference, "GET", f"/{made['id']}").json()["used_tokens"] == 20


def test_a_prompt_without_a_chat_is_counted_too(inference: Inference) -> None:
    made = make(inference, budget={"calls": 1})
    answer = agent(made).completions.create(model="demo", prompt="hi", max_tokens=4)
    assert call(inference, "GET", f"/{made['id']}").json()["used_tokens"] == answer.usage.completion_tokens  # type: ignore[union-attr]
    assert refusal(agent(made)).status_code == 403


@pytest.mark.usefixtures("alone")
def test_an_answer_whose_client_left_is_counted(inference: Inference) -> None:
    inference.engine.hold_after = 3
    made = make(inference)
    stream = ask(agent(made), stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: call(inference, "GET", f"/{made['id']}").json()["used_tokens"] > 0)
    assert call(inference, "GET", f"/{made['id']}").json()["used_calls"] == 1


def test_a_repeat_is_not_counted_again(inference: Inference) -> None:
    client = agent(make(inference, budget={"calls": 1}))
    answers = {ask(client, extra_headers={"idempotency-key": "k"}).id for _ in range(3)}
    assert len(answers) == 1


def test_time_runs_out(inference: Inference) -> None:
    client = agent(make(inference, budget={"seconds": 0.3}))
    time.sleep(0.4)
    assert "0.3 seconds" in refusal(client).message


def test_an_ended_session_answers_nobody(inference: Inference) -> None:
    made = make(inference)
    ask(agent(made))
    ended = call(inference, "DELETE", f"/{made['id']}").json()
    assert ended["ended_at"] is not None
    assert call(inference, "DELETE", f"/{made['id']}").json() == ended
    assert "was ended" in refusal(agent(made)).message


@pytest.mark.usefixtures("alone")
def test_a_session_ends_with_the_key_that_made_it(inference: Inference, database: Database) -> None:
    made = make(inference)
    with database.transaction() as connection:
        revoke_keys(connection, [inference.key.split("-")[2]], time.time())
    assert refusal(agent(made)).status_code == 401


@pytest.mark.parametrize(
    "change",
    [lambda key: key[:-1] + ("0" if key[-1] != "0" else "1"), lambda key: key.replace("mr-session-", "mr-app-")],
)
def test_a_guessed_key_is_refused(inference: Inference, change: Any) -> None:
    made = make(inference)
    assert refusal(agent({**made, "key": change(made["key"])})).status_code == 401
    other = f"mr-session-{'0' * 24}-{made['key'].split('-')[3]}"
    assert refusal(agent({**made, "key": other})).status_code == 401


def test_its_key_may_do_nothing_but_ask(inference: Inference) -> None:
    made = make(inference)
    for method, path in (("POST", ""), ("GET", f"/{made['id']}"), ("DELETE", f"/{made['id']}")):
        assert call(inference, method, path, made["key"]).status_code == 403
    headers = {"authorization": f"Bearer {made['key']}"}
    assert httpx.get(f"{inference.url}/hot_load/v1/models/hot_load", headers=headers).status_code == 403
    purpose = {"x-millrace-purpose": "sentinel"}
    assert refusal(agent(made), extra_headers=purpose).status_code == 403


def test_a_call_that_names_another_session_or_task_is_refused(inference: Inference) -> None:
    made = make(inference)
    for metadata in ({"session_id": "other"}, {"task": "other"}):
        error = refusal(agent(made), metadata=metadata)
        assert error.status_code == 400
        assert error.param == f"metadata.{next(iter(metadata))}"
    ask(agent(made), metadata={"session_id": made["id"], "turn": "1"})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"task": "none"}, "task"),
        ({"budget": {"calls": 0}}, "budget.calls"),
        ({"budget": {"tokens": -1}}, "budget.tokens"),
        ({"budget": {"seconds": "1"}}, "budget.seconds"),
        ({"budget": {"money": 1}}, "budget"),
        ({"group": ""}, "group"),
        ({"group": "a\0b"}, "group"),
        ({"group": "x" * 65}, "group"),
        ({"name": "g"}, None),
    ],
)
def test_a_wrong_session_is_refused_by_name(inference: Inference, body: dict[str, Any], param: str | None) -> None:
    answer = call(inference, "POST", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.usefixtures("alone")
def test_another_tenant_sees_nothing(inference: Inference, database: Database) -> None:
    made = make(inference)
    with database.transaction() as connection:
        stranger = create_key(connection, "app", "stranger")
    for method in ("GET", "DELETE"):
        assert call(inference, method, f"/{made['id']}", stranger).status_code == 404
    for method in ("GET", "DELETE"):
        assert call(inference, method, "/nobody").status_code == 404
        assert call(inference, method, "/a%00b").status_code == 404


@pytest.mark.usefixtures("alone")
def test_sessions_that_are_long_over_are_forgotten(inference: Inference, database: Database) -> None:
    made = make(inference, budget={"seconds": 1})
    with database.transaction() as connection:
        caller = find_key(connection, inference.key.split("-")[2], time.time())
        later = time.time() + agent_sessions.KEPT_SECONDS + 2
        agent_sessions.make_session(connection, caller, "t", agent_sessions.SessionBudget(), now=later, longest=1.0)
    assert call(inference, "GET", f"/{made['id']}").status_code == 404


PLAIN = {"model": "demo", "messages": ASKED}
LIMITED = {**PLAIN, "max_tokens": 8}


def send(inference: Inference, target: str, body: Any = PLAIN, key: str = "", **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or inference.key}", **headers}
    return httpx.post(f"{inference.url}{target}", json=body, headers=headers, timeout=10.0)


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
