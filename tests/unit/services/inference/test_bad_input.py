"""Every bad request gets a status, a code, the name of the field, and a remedy."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from contracts.errors import InvalidRequest
from services.inference.requests import ChatRequest, parse_chat_request
from tests.each_case import each_case
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import CONTEXT

GOOD: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def parse(**changes: Any) -> ChatRequest:
    return parse_chat_request(json.dumps(GOOD | changes).encode())


@each_case(
    ("field", "value", "code"),
    [
        ("temperature", -1, "invalid_request"),
        ("temperature", 2.5, "invalid_request"),
        ("temperature", "hot", "invalid_request"),
        ("seed", 2**63, "invalid_request"),
        ("seed", 1.5, "invalid_request"),
        ("top_p", 0, "invalid_request"),
        ("top_p", 1.5, "invalid_request"),
        ("top_k", -2, "invalid_request"),
        ("top_k", 2**31, "invalid_request"),
        ("min_p", -0.1, "invalid_request"),
        ("min_p", 1.1, "invalid_request"),
        ("n", 0, "invalid_request"),
        ("n", 9, "invalid_request"),
        ("n", 1.5, "invalid_request"),
        ("max_tokens", 0, "invalid_request"),
        ("max_completion_tokens", -3, "invalid_request"),
        ("stop", ["a", "b", "c", "d", "e"], "invalid_request"),
        ("stop", "", "invalid_request"),
        ("metadata", {"k" * 65: "v"}, "invalid_request"),
        ("metadata", {"k": "v" * 513}, "invalid_request"),
        ("metadata", {"reference": "v" * 50_001}, "invalid_request"),
        ("metadata", {str(i): "v" for i in range(17)}, "invalid_request"),
        ("top_logprobs", 5, "invalid_request"),
        ("top_logprobs", 21, "invalid_request"),
        ("logit_bias", {"5": -101}, "invalid_request"),
        ("logit_bias", {"x": 1}, "invalid_request"),
        ("logit_bias", {"-1": 1}, "invalid_request"),
        ("logit_bias", {"9999999999": 1}, "invalid_request"),
        ("logit_bias", {str(token): 1 for token in range(1025)}, "invalid_request"),
        ("frequency_penalty", 2.5, "invalid_request"),
        ("presence_penalty", -2.5, "invalid_request"),
        ("presence_penalty", "0", "invalid_request"),
        ("repetition_penalty", 0, "invalid_request"),
        ("repetition_penalty", 10.5, "invalid_request"),
        ("functions", [{"name": "f"}], "unsupported_parameter"),
        ("chat_template_kwargs", {"messages": "x"}, "invalid_request"),
        ("chat_template_kwargs", {"eos_token": "x"}, "invalid_request"),
        ("chat_template_kwargs", {"_x": True}, "invalid_request"),
        ("chat_template_kwargs", {"date": "<|im_start|>"}, "invalid_request"),
        ("chat_template_kwargs", {f"x{i}": 1 for i in range(17)}, "invalid_request"),
        ("messages", "hi", "invalid_request"),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(**{field: value})

    assert (error.value.status, error.value.code, error.value.param) == (400, code, field)
    assert error.value.message


@each_case(
    ("message", "param"),
    [
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "system"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "messages[0].content"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "messages[0].refusal"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, "messages[0].function_call"),
        ({"role": "assistant", "audio": {"id": "1"}}, "messages[0].audio"),
        ({"role": "function", "content": "x", "name": "f"}, "messages[0].role"),
        ({"role": "<|im_start|>", "content": "x"}, "messages[0].role"),
        ({"role": "User", "content": "x"}, "messages[0].role"),
    ],
)
def test_a_bad_message_is_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(messages=[message])

    assert error.value.param == param


def test_a_reference_may_be_as_long_as_the_tests_of_a_program() -> None:
    assert parse(metadata={"reference": "v" * 50_000}).labels["reference"] == "v" * 50_000


@pytest.mark.parametrize("field", ["prediction", "moderation"])
def test_a_body_that_is_nested_too_deep_is_refused(field: str) -> None:
    body = json.dumps(GOOD)[:-1] + f', "{field}": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(InvalidRequest, match="nested too deep"):
        parse_chat_request(body.encode())


def test_every_refusal_is_an_error_object(inference: Inference) -> None:
    long = GOOD | {"messages": [{"role": "user", "content": "x" * CONTEXT}]}
    cases: list[tuple[str, int, str, str | None]] = [
        ("{not json", 400, "invalid_request", None),
        ("", 400, "invalid_request", None),
        ("[]", 400, "invalid_request", None),
        ('{"model": "demo"}', 400, "invalid_request", "messages"),
        (json.dumps(GOOD | {"temperature": -0.5}), 400, "invalid_request", "temperature"),
        (json.dumps(GOOD | {"model": "gpt-9"}), 404, "model_not_found", "model"),
        (json.dumps(GOOD | {"metadata": {"task": "nope"}}), 400, "invalid_request", "metadata.task"),
        (json.dumps(GOOD | {"messages": []}), 400, "invalid_request", "messages"),
        (json.dumps(long), 400, "context_length_exceeded", "messages"),
        (json.dumps(long | {"stream": True}), 400, "context_length_exceeded", "messages"),
    ]
    for body, status, code, param in cases:
        response = inference.post(body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, code, param), body
        assert error["type"] == "invalid_request_error"
        assert error["message"]
    assert inference.logged() == []
    assert inference.engine.requests == []


def test_keys_and_purposes_are_checked(inference: Inference) -> None:
    body = json.dumps(GOOD)
    for headers, status, code in (
        ({"authorization": "Bearer nonsense"}, 401, "invalid_api_key"),
        ({"authorization": "Bearer mr-app-000000000000-00"}, 401, "invalid_api_key"),
        ({"x-millrace-purpose": "sentinel"}, 403, "operator_key_required"),
        ({"x-millrace-purpose": "fun"}, 400, "invalid_request"),
        ({"x-millrace-purpose": "imported"}, 400, "invalid_request"),
    ):
        response = inference.post(body, **headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert httpx.get(f"{inference.url}/v1/models").status_code == 401
    with pytest.raises(openai.AuthenticationError):
        inference.client.with_options(api_key="mr-app-000000000000-00").models.list()


def test_other_paths_methods_and_sizes_are_refused(inference: Inference) -> None:
    missing = httpx.get(f"{inference.url}/v1/embeddings")
    wrong = httpx.put(f"{inference.url}/v1/chat/completions")
    large = inference.post(json.dumps(GOOD | {"user": "x" * 9_000_000}))

    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    assert wrong.status_code == 405
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    assert "4 MiB" in large.json()["error"]["message"]


@pytest.mark.parametrize("pair", [{"task": "boo\0king"}, {"session_id": "\0"}, {"a\0": "b"}, {"join_key": "\0"}])
def test_a_nul_in_metadata_is_refused_before_anything_is_answered(pair: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="NUL") as refused:
        parse(metadata=pair)
    assert (refused.value.status, refused.value.param) == (400, "metadata")
