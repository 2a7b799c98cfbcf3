"""`POST /v1/completions` through the unmodified OpenAI SDK: texts and token ids, whole and streamed, logged like chats."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from contracts.errors import Unauthorized
from contracts.records import unpack_ids
from services.http import authorization_of
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import CONTEXT, make_tokenizer

TEXT = "Tisch für 4: {ok}"
PROMPT = "Once <|user|> upon"


def complete(inference: Inference, **changes: Any) -> Any:
    return inference.client.completions.create(**{"model": "demo", "prompt": PROMPT} | changes)


def prompts_of(inference: Inference) -> list[str]:
    return [
        make_tokenizer().decode(asked["token_ids"], skip_special_tokens=False) for asked in inference.engine.requests
    ]


def test_a_prompt_is_given_to_the_model_as_it_is(inference: Inference) -> None:
    answer = complete(inference)

    ids = make_tokenizer().encode(PROMPT).ids
    assert inference.engine.requests[0]["token_ids"] == ids
    assert (answer.object, answer.model, answer.system_fingerprint) == ("text_completion", "demo", "demo@v3")
    assert [(c.index, c.text, c.finish_reason, c.logprobs) for c in answer.choices] == [(0, TEXT, "stop", None)]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), len(inference.engine.answer))
    assert answer.model_extra["sampling"]["max_tokens"] == 32


def test_it_is_logged_like_a_chat(inference: Inference) -> None:
    answer = complete(inference, user="u1", extra_body={"metadata": {"session_id": "s1"}})

    [record] = inference.logged()
    body = record.open()
    assert (record.completion_id, record.person, record.session_id, record.task) == (answer.id, "u1", "s1", "booking")
    assert not record.sampling.off_support
    assert body.messages == [{"role": "user", "content": PROMPT}]
    assert unpack_ids(body.prompt_ids) == make_tokenizer().encode(PROMPT).ids
    assert body.text == TEXT
    complete(inference, extra_body={"store": False})
    assert len(inference.logged()) == 1


def test_token_ids_are_a_prompt_too(inference: Inference) -> None:
    ids = make_tokenizer().encode(PROMPT).ids
    complete(inference, prompt=ids)

    assert inference.engine.requests[0]["token_ids"] == ids
    assert inference.logged()[0].open().messages == [{"role": "user", "content": PROMPT}]


@pytest.mark.parametrize("form", ["texts", "ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_answers_to_several_prompts_are_numbered_through(inference: Inference, form: str, stream: bool) -> None:
    prompts = ["one", "two"]
    sent: Any = prompts if form == "texts" else [make_tokenizer().encode(prompt).ids for prompt in prompts]
    answer = complete(inference, prompt=sent, n=2, stream=stream)
    texts, addresses = dict.fromkeys(range(4), ""), {}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            addresses[choice.index] = (choice.model_extra["completion_id"], choice.model_extra["choice"])

    assert texts == dict.fromkeys(range(4), TEXT)
    assert sorted(prompts_of(inference)) == ["one", "one", "two", "two"]
    logged = {(r.completion_id, r.choice): r.open().messages[0]["content"] for r in inference.logged()}
    assert [logged[addresses[index]] for index in range(4)] == ["one", "one", "two", "two"]
    assert [addresses[index][1] for index in range(4)] == [0, 1, 0, 1]
    assert inference.log.num_appends == 1


def test_a_stream_says_the_same(inference: Inference) -> None:
    chunks = list(complete(inference, stream=True, stream_options={"include_usage": True}))

    shown = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in shown) == TEXT
    assert [choice.finish_reason for choice in shown] == [None] * (len(shown) - 1) + ["stop"]
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage.completion_tokens == len(inference.engine.answer)
    assert chunks[0].model_extra["sampling"]["temperature"] == 1.0


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_the_shape_of_that_time(inference: Inference, stream: bool) -> None:
    answer = complete(inference, logprobs=2, stream=stream)
    parts = [p.choices[0].logprobs for p in (answer if stream else [answer]) if p.choices and p.choices[0].logprobs]

    tokens = [token for part in parts for token in part.tokens]
    assert tokens[:3] == ["T", "i", "s"]
    assert [value for part in parts for value in part.token_logprobs] == [-0.5] * len(inference.engine.answer)
    assert [place for part in parts for place in part.text_offset][:3] == [0, 1, 2]
    assert parts[0].top_logprobs[0] == {"T": -0.5, "U": -1.5}
    assert complete(inference, logprobs=0).choices[0].logprobs.top_logprobs is None


def test_token_ids_come_back_as_vllm_gives_them(inference: Inference) -> None:
    ids = make_tokenizer().encode(PROMPT).ids
    answer = complete(inference, extra_body={"return_token_ids": True})
    chunks = [c.choices[0] for c in complete(inference, stream=True, extra_body={"return_token_ids": True})]

    assert answer.choices[0].model_extra["prompt_token_ids"] == ids
    assert answer.choices[0].model_extra["token_ids"] == inference.engine.answer
    assert chunks[0].model_extra["prompt_token_ids"] == ids
    assert [one for chunk in chunks for one in chunk.model_extra["token_ids"]] == inference.engine.answer


def test_options_are_those_of_chats(inference: Inference) -> None:
    private = {"metadata": {"task": "private"}, "store": True, "repetition_penalty": 1.5, "top_k": 3}
    answer = complete(
        inference, extra_body=private, temperature=0.5, seed=7, logit_bias={"5": 1}, stop=["r 4:"], max_tokens=40
    )

    params = inference.engine.requests[0]["sampling_params"]
    assert params.items() >= {"temperature": 0.5, "seed": 7, "logit_bias": {"5": 1}, "top_k": 3}.items()
    assert params["repetition_penalty"] == 1.5
    assert answer.choices[0].text == "Tisch fü"
    assert inference.logged()[0].sampling.off_support == "biased"


def test_a_repeat_gets_the_first_answer(inference: Inference) -> None:
    headers = {"idempotency-key": "k"}
    first, again = (complete(inference, prompt=["a", "b"], extra_headers=headers) for _ in range(2))

    assert first.id == again.id
    assert len(inference.engine.requests) == 2


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"prompt": ""}, "invalid_request", "prompt"),
        ({"prompt": []}, "invalid_request", "prompt"),
        ({"prompt": ["a", ""]}, "invalid_request", "prompt"),
        ({"prompt": ["a", 5]}, "invalid_request", "prompt"),
        ({"prompt": [[]]}, "invalid_request", "prompt"),
        ({"prompt": [99_999]}, "invalid_request", "prompt"),
        ({"prompt": [-1]}, "invalid_request", "prompt"),
        ({"prompt": None}, "invalid_request", "prompt"),
        ({"prompt": ["a"] * 9}, "invalid_request", "prompt"),
        ({"prompt": ["a"] * 5, "n": 2}, "invalid_request", "prompt"),
        ({"prompt": [5] * CONTEXT}, "context_length_exceeded", "prompt"),
        ({"prompt": [5] * 600_000}, "invalid_request", "prompt"),
        ({"prompt": "x" * CONTEXT}, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * 100_000}, "context_length_exceeded", "prompt"),
        ({"echo": True}, "unsupported_parameter", "echo"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 3}, "unsupported_parameter", "best_of"),
        ({"logprobs": 21}, "invalid_request", "logprobs"),
        ({"logprobs": -1}, "invalid_request", "logprobs"),
        ({"n": 9}, "invalid_request", "n"),
        ({"max_tokens": 0}, "invalid_request", "max_tokens"),
        ({"stop": [""]}, "invalid_request", "stop"),
        ({"messages": []}, "unsupported_parameter", "messages"),
        ({"promt": "x"}, "unsupported_parameter", "promt"),
        ({"stream_options": {"usage": True}}, "unsupported_parameter", "stream_options.usage"),
        ({"logit_bias": {"5": 200}}, "invalid_request", "logit_bias"),
        ({"metadata": {"a\0": "b"}}, "invalid_request", "metadata"),
        ({"pad": "x" * 2**18}, "invalid_request", None),
        ({"prompt": [7] * (2**18 + 2)}, "invalid_request", "prompt"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    inference: Inference, changes: dict[str, Any], code: str, param: str | None
) -> None:
    headers = {"authorization": f"Bearer {inference.key}"}
    body = {"model": "demo", "prompt": "hi"} | changes
    response = httpx.post(f"{inference.url}/v1/completions", json=body, headers=headers, timeout=10)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert (inference.engine.requests, inference.logged()) == ([], [])


def test_fields_that_change_nothing_are_accepted(inference: Inference) -> None:
    answer = complete(inference, echo=False, best_of=1, suffix=None, n=1)

    assert answer.choices[0].text == TEXT


def test_models_that_do_not_exist_are_named(inference: Inference) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        complete(inference, model="gpt-9")
    assert refused.value.code == "model_not_found"


HELLO = [{"role": "user", "content": "hi"}]


def tokenize(inference: Inference, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {inference.key}"}
    return httpx.post(f"{inference.url}/tokenize", json=body, headers=headers, timeout=20)


def test_messages_are_those_of_a_chat(inference: Inference) -> None:
    ids = make_tokenizer().encode("<|user|>hi<|end|><|assistant|>").ids
    inference.ask(messages=HELLO)
    assert inference.engine.requests[-1]["token_ids"] == ids
    answer = tokenize(inference, model="demo", messages=HELLO).json()
    assert answer == {"count": len(ids), "max_model_len": CONTEXT, "tokens": ids, "token_strs": None}
    closed = tokenize(inference, messages=HELLO, add_generation_prompt=False, return_token_strs=True).json()
    assert closed["tokens"] == ids[:-1]
    assert closed["token_strs"] == ["<|user|>", "h", "i", "<|end|>"]
    assert len(inference.logged()) == 1


def test_a_prompt_is_taken_as_it_is(inference: Inference) -> None:
    answer = tokenize(inference, prompt="<|user|>hi", return_token_strs=True).json()
    assert answer["token_strs"] == ["<|user|>", "h", "i"]
    assert tokenize(inference, prompt="x" * CONTEXT, add_special_tokens=False).json()["count"] == CONTEXT


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "messages"),
        ({"prompt": "x", "messages": HELLO}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ({"prompt": "x", "add_generation_prompt": False}, 400, "prompt"),
        ({"messages": HELLO, "add_special_tokens": True}, 400, "add_special_tokens"),
        ({"messages": HELLO, "continue_final_message": True}, 400, "continue_final_message"),
        ({"messages": HELLO, "chat_template": "x"}, 400, "chat_template"),
        ({"messages": HELLO, "chat_template_kwargs": {"tools": 1}}, 400, "chat_template_kwargs"),
        ({"messages": HELLO, "message": HELLO}, 400, "message"),
        ({"messages": HELLO, "model": "x"}, 404, "model"),
        ({"prompt": "x", "model": "x"}, 404, "model"),
        ({"prompt": "x" * 10_000}, 400, "prompt"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    inference: Inference, body: dict[str, Any], status: int, param: str
) -> None:
    answer = tokenize(inference, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_key_comes_in_either_header() -> None:
    assert authorization_of({}) == ""
    assert authorization_of({"authorization": "bearer k"}) == "bearer k"
    assert authorization_of({"x-api-key": "k"}) == authorization_of({"x-api-key": "k", "authorization": "Bearer k"})
    for other in ("Bearer j", "Bearer", "Basic j"):
        with pytest.raises(Unauthorized, match="different keys"):
            authorization_of({"x-api-key": "k", "authorization": other})
