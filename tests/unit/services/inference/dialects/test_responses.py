"""`POST /v1/responses` through the unmodified OpenAI SDK: whole and streamed, kept for the next request, logged like chats."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from contracts.ids import completion_id_of
from runtime.database import Database
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.test_prompts import prompts_of
from tests.unit.services.inference.world import CONTEXT, make_tokenizer
from tests.unit.services.serving import make_key, wait_until

TEXT = "Tisch für 4: {ok}"
ASKED = "<|user|>table for 4<|end|><|assistant|>"


def respond(inference: Inference, **changes: Any) -> Any:
    return inference.client.responses.create(**{"model": "demo", "input": "table for 4"} | changes)


def test_a_whole_response(inference: Inference) -> None:
    before = int(time.time())
    answer = respond(inference, metadata={"session_id": "s1"}, user="u1")

    uuid = answer.id.removeprefix("resp_")
    told = answer.to_dict()
    sampling, created, completed = told.pop("sampling"), told.pop("created_at"), told.pop("completed_at")
    assert before <= created <= completed <= time.time()
    assert (sampling["temperature"], sampling["max_tokens"]) == (1.0, 32)
    assert told == {
        "id": f"resp_{uuid}",
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "background": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"session_id": "s1"},
        "model": "demo",
        "output": [
            {
                "id": f"msg_{uuid}_0",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": len(make_tokenizer().encode(ASKED).ids),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(inference.engine.answer),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(make_tokenizer().encode(ASKED).ids) + len(inference.engine.answer),
        },
        "user": "u1",
        "completion_id": f"chatcmpl-{uuid}",
        "policy_version": 3,
    }
    assert answer.output_text == TEXT
    assert answer._request_id == f"chatcmpl-{uuid}"


def test_it_is_logged_like_a_chat(inference: Inference) -> None:
    answer = respond(inference, instructions="Be brief.", metadata={"session_id": "s1"}, user="u1")

    [record] = inference.logged()
    assert record.completion_id == completion_id_of(answer.id)
    assert (record.person, record.session_id, record.task, record.sampling.off_support) == ("u1", "s1", "booking", "")
    assert record.open().text == TEXT
    assert record.open().messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "table for 4"},
    ]
    assert prompts_of(inference) == [f"<|system|>Be brief.<|end|>{ASKED}"]


def test_a_stream_is_a_row_of_numbered_events(inference: Inference) -> None:
    events = [event.to_dict() for event in respond(inference, stream=True)]

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[4:-4] == ["response.output_text.delta"] * len(deltas)
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    begun, ended = events[0]["response"], events[-1]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert events[2]["item"] == {**ended["output"][0], "status": "in_progress", "content": []}
    assert events[3]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert "".join(event["delta"] for event in deltas) == events[-4]["text"] == TEXT
    assert events[-3]["part"] == ended["output"][0]["content"][0]
    assert events[-2]["item"] == ended["output"][0]
    assert {(event["item_id"], event["output_index"]) for event in deltas} == {(ended["output"][0]["id"], 0)}

    whole = respond(inference).to_dict()
    own = ("id", "completion_id", "created_at", "completed_at")
    for response in (whole, ended):
        response["output"][0].pop("id")
    assert {k: v for k, v in ended.items() if k not in own} == {k: v for k, v in whole.items() if k not in own}


def test_the_bytes_of_a_stream_name_each_event(inference: Inference) -> None:
    body = {"model": "demo", "input": "table for 4", "stream": True}
    headers = {"authorization": f"Bearer {inference.key}"}
    answer = httpx.post(f"{inference.url}/v1/responses", json=body, headers=headers, timeout=10)

    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [event.split("\n") for event in answer.text.removesuffix("\n\n").split("\n\n")]
    assert all(len(lines) == 2 for lines in events)
    for name, data in events:
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert events[-1][0] == "event: response.completed"


def test_the_helper_of_the_sdk_follows_a_stream(inference: Inference) -> None:
    with inference.client.responses.stream(model="demo", input="table for 4") as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert (final.output_text, final.status) == (TEXT, "completed")
    assert seen[-1] == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_incomplete(inference: Inference, stream: bool) -> None:
    answer = respond(inference, max_output_tokens=5, stream=stream)
    if stream:
        events = list(answer)
        assert events[-1].type == "response.incomplete"
        answer = events[-1].response

    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.output[0].status, answer.output_text, answer.max_output_tokens) == ("incomplete", "Tisch", 5)
    assert answer.completed_at is None


def test_the_next_request_goes_on_from_the_previous_response(inference: Inference) -> None:
    first = respond(inference, instructions="Be brief.")
    second = respond(inference, input="and now?", previous_response_id=first.id)
    items = [*({"role": "user", "content": "table for 4"},), *first.output, {"role": "user", "content": "and now?"}]
    respond(inference, input=items)
    third = respond(inference, input=[{"role": "user", "content": "x"}], previous_response_id=second.id, stream=True)

    prompts = prompts_of(inference)
    assert prompts[1] == f"<|user|>table for 4<|end|><|assistant|>{TEXT}<|end|><|user|>and now?<|end|><|assistant|>"
    assert prompts[2] == prompts[1]
    assert prompts[3] == f"{prompts[1]}{TEXT}<|end|><|user|>x<|end|><|assistant|>"
    assert second.previous_response_id == first.id
    assert list(third)[-1].response.previous_response_id == second.id


def test_what_is_streamed_can_be_gone_on_from_at_once(inference: Inference) -> None:
    first = list(respond(inference, stream=True))[-1].response
    respond(inference, input="more", previous_response_id=first.id, stream=True)

    assert TEXT in prompts_of(inference)[1]


def test_a_response_is_shown_with_what_it_answers(inference: Inference) -> None:
    first = respond(inference)
    second = respond(inference, input=[{"role": "user", "content": "more"}], previous_response_id=first.id)
    uuid = second.id.removeprefix("resp_")

    assert inference.client.responses.retrieve(second.id).to_dict() == second.to_dict()
    shown: Any = list(inference.client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [(item.id, item.content[0].text) for item in shown] == [
        (f"msg_{first.id.removeprefix('resp_')}_in0", "table for 4"),
        (first.output[0].id, TEXT),
        (f"msg_{uuid}_in0", "more"),
    ]
    newest = inference.client.responses.input_items.list(second.id)
    assert [item.id for item in newest.data] == [item.id for item in reversed(shown)]
    with pytest.raises(openai.BadRequestError) as refused:
        inference.client.responses.input_items.list(second.id, after="msg_x")
    assert refused.value.param == "after"


@pytest.mark.parametrize("name", ["stream", "include", "starting_after"])
def test_parameters_that_are_not_served_are_refused(inference: Inference, name: str) -> None:
    answer = respond(inference)
    headers = {"authorization": f"Bearer {inference.key}"}
    refused = httpx.get(f"{inference.url}/v1/responses/{answer.id}", params={name: "1"}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_a_response_cannot_be_deleted(inference: Inference) -> None:
    answer = respond(inference)
    with pytest.raises(openai.BadRequestError, match="cannot be deleted") as refused:
        inference.client.responses.delete(answer.id)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "response_id")
    with pytest.raises(openai.NotFoundError):
        inference.client.responses.delete("resp_x")


def test_what_may_not_be_stored_is_not_kept(inference: Inference) -> None:
    answer = respond(inference, store=False)
    assert (answer.store, inference.logged()) == (False, [])
    with pytest.raises(openai.NotFoundError, match="store=false") as refused:
        respond(inference, previous_response_id=answer.id)
    assert (refused.value.code, refused.value.param) == ("not_found", "previous_response_id")
    with pytest.raises(openai.NotFoundError, match="store=false") as refused:
        inference.client.responses.retrieve(answer.id)
    assert refused.value.param == "response_id"
    private = respond(inference, metadata={"task": "private"})
    assert private.store is False
    assert respond(inference, metadata={"task": "private"}, store=True).store is True


@pytest.mark.parametrize("previous", ["resp_x", "", "chatcmpl-x", "resp_" + "0" * 36, "x" * 1000])
def test_a_response_that_was_never_made_is_not_found(inference: Inference, previous: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        respond(inference, previous_response_id=previous)
    assert refused.value.param == "previous_response_id"
    assert inference.engine.requests == []


@pytest.mark.usefixtures("alone")
def test_another_tenants_response_is_not_found(inference: Inference, database: Database) -> None:
    answer = respond(inference)
    stranger = inference.client.with_options(api_key=make_key(database, tenant="other"))
    asked: dict[str, Any] = {"model": "demo", "input": "more"}
    for ask in (
        lambda: stranger.responses.retrieve(answer.id),
        lambda: stranger.responses.create(**asked, previous_response_id=answer.id),
        lambda: stranger.responses.create(**asked | {"input": [{"type": "item_reference", "id": answer.output[0].id}]}),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    stranger.close()


def test_a_reference_stands_for_an_item(inference: Inference) -> None:
    first = respond(inference)
    asked = [{"role": "user", "content": "table for 4"}, {"type": "item_reference", "id": first.output[0].id}]
    respond(inference, input=[*asked, {"role": "user", "content": "x"}])

    assert prompts_of(inference)[1] == f"{ASKED}{TEXT}<|end|><|user|>x<|end|><|assistant|>"
    with pytest.raises(openai.NotFoundError) as refused:
        respond(inference, input=[{"type": "item_reference", "id": "msg_x"}])
    assert refused.value.param == "input[0].id"


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeat_gets_the_first_answer(inference: Inference, stream: bool) -> None:
    headers = {"idempotency-key": "k"}
    answers = [respond(inference, stream=stream, extra_headers=headers) for _ in range(2)]
    ids = {list(answer)[-1].response.id if stream else answer.id for answer in answers}

    assert len(ids) == 1
    assert len(inference.engine.requests) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_failure_in_the_middle_of_a_stream_is_raised(inference: Inference) -> None:
    inference.engine.die_after = 6
    inference.engine.stays_dead = True
    with pytest.raises(openai.APIError) as raised:
        list(respond(inference, stream=True))
    assert raised.value.code in ("unavailable", "engine_restarted", "engine_failed")


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_failed_stream_has_a_failed_response(inference: Inference) -> None:
    inference.engine.die_after = 6
    inference.engine.stays_dead = True
    body = {"model": "demo", "input": "table for 4", "stream": True}
    headers = {"authorization": f"Bearer {inference.key}", "idempotency-key": "k"}
    answer = httpx.post(f"{inference.url}/v1/responses", json=body, headers=headers, timeout=20)

    last = json.loads(answer.text.removesuffix("\n\n").rpartition("data: ")[2])
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["error"]["message"] == last["error"]["message"]
    assert last["sequence_number"] > 4
    wait_until(inference.logged)
    assert inference.logged()[0].finish_reason == "error"
    with pytest.raises(openai.NotFoundError):
        inference.client.responses.retrieve(last["response"]["id"])


@pytest.mark.usefixtures("alone")
def test_the_end_waits_for_the_log(inference: Inference) -> None:
    inference.log.full.set()
    answer = inference.client.responses.with_raw_response.create(model="demo", input="table for 4")
    assert answer.headers["x-millrace-logged"] == "false"
    events: Any = list(respond(inference, stream=True))
    assert events[-1].model_extra["millrace"] == {"logged": False}


def test_token_ids_and_log_probs_come_back_if_asked_for(inference: Inference) -> None:
    answer = respond(
        inference, include=["message.output_text.logprobs"], top_logprobs=2, extra_body={"return_token_ids": True}
    )
    assert answer.model_extra["token_ids"] == inference.engine.answer
    assert answer.model_extra["prompt_token_ids"] == make_tokenizer().encode(ASKED).ids
    logprobs = answer.output[0].content[0].logprobs
    assert [token.token for token in logprobs[:3]] == ["T", "i", "s"]
    assert [len(token.top_logprobs) for token in logprobs] == [2] * len(logprobs)
    deltas = [
        event
        for event in respond(inference, include=["message.output_text.logprobs"], stream=True)
        if event.type == "response.output_text.delta"
    ]
    assert [token.logprob for delta in deltas for token in delta.logprobs] == [-0.5] * len(logprobs)


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"input": "x" * CONTEXT}, openai.BadRequestError, "input"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"metadata": {"task": "none"}}, openai.BadRequestError, "metadata.task"),
        ({"reasoning": {"effort": "lots"}}, openai.BadRequestError, "reasoning.effort"),
        ({"tools": [{"type": "function", "name": "f", "parameters": None, "strict": None}]}, openai.BadRequestError, "tools"),
        ({"extra_body": {"max_tokens": 3}}, openai.BadRequestError, "max_tokens"),
        ({"metadata": {"task": "private"}, "max_output_tokens": CONTEXT}, openai.BadRequestError, "max_output_tokens"),
    ],
)  # fmt: skip
def test_refusals_are_raised_by_the_sdk(
    inference: Inference, changes: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as refused:
        respond(inference, **changes)
    assert refused.value.param == param
    assert (inference.engine.requests, inference.logged()) == ([], [])


def test_a_wrong_key_and_an_unknown_route(inference: Inference) -> None:
    with pytest.raises(openai.AuthenticationError):
        inference.client.with_options(api_key="sk-wrong").responses.create(model="demo", input="x")
    with pytest.raises(openai.NotFoundError):
        inference.client.responses.cancel("resp_x")


def test_a_session_goes_on_from_its_own_responses_and_from_no_others(inference: Inference) -> None:
    headers = {"authorization": f"Bearer {inference.key}"}
    url = f"{inference.url}/v1/sessions"
    made = [httpx.post(url, json={}, headers=headers, timeout=10).json() for _ in range(2)]
    with (
        openai.OpenAI(base_url=made[0]["base_url"], api_key=made[0]["key"], max_retries=0) as agent,
        openai.OpenAI(base_url=f"{inference.url}/v1", api_key=made[1]["key"], max_retries=0) as other,
        inference.client.with_options(base_url=made[0]["base_url"]) as at_url,
    ):
        of_app = respond(inference)
        first = agent.responses.create(model="demo", input="table for 4")
        second = agent.responses.create(model="demo", input="more", previous_response_id=first.id)
        reference: Any = [{"type": "item_reference", "id": second.output[0].id}]
        assert agent.responses.retrieve(second.id).output_text == TEXT
        assert at_url.responses.create(model="demo", input=reference, store=False).output_text == TEXT
        assert respond(inference, input=reference).output_text == TEXT
        assert respond(inference, previous_response_id=second.id).output_text == TEXT
        num_asked = len(inference.engine.requests)
        for client, response in ((other, second), (other, of_app), (agent, of_app), (at_url, of_app)):
            with pytest.raises(openai.NotFoundError, match="another tenant or session"):
                client.responses.create(model="demo", input="more", previous_response_id=response.id)
            foreign: Any = [{"type": "item_reference", "id": response.output[0].id}]
            with pytest.raises(openai.NotFoundError, match="another tenant or session"):
                client.responses.create(model="demo", input=foreign)
            for call in (client.responses.retrieve, client.responses.input_items.list, client.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    call(response.id)
        assert len(inference.engine.requests) == num_asked


def test_a_request_may_refer_to_so_many_responses(inference: Inference) -> None:
    def references(num: int) -> list[Any]:
        ids = (f"{place:08x}-0000-7000-8000-000000000000" for place in range(num))
        return [{"type": "item_reference", "id": f"msg_{one}_0"} for one in ids]

    with pytest.raises(
        openai.BadRequestError, match="refers to items of 257 earlier responses, and may refer to 256"
    ) as refused:
        respond(inference, input=references(257))
    assert refused.value.param == "input"
    with pytest.raises(openai.NotFoundError):
        respond(inference, input=references(256))
