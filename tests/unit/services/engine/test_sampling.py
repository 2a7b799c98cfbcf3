from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from contracts.errors import InvalidRequest
from services.engine.sampler import SequenceSampling
from services.engine.sampling import (
    GenerateRequest,
    ModelLimits,
    SamplingParams,
    check_request,
    stop_ids,
)
from services.http import read_json
from tests.each_case import each_case

LIMITS = ModelLimits(vocab_size=64, context=32)


def body(**fields: Any) -> bytes:
    head = {"model": "demo", "token_ids": [1, 2]} | {
        name: fields.pop(name) for name in ("token_ids", "num_made") if name in fields
    }
    return json.dumps({**head, "sampling_params": fields}).encode()


def params_of(**fields: Any) -> SamplingParams:
    return read_json(GenerateRequest, body(**fields)).sampling_params


@each_case(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [64]}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"stop_token_ids": [70]}, "stop_token_ids"),
        ({"n": 2}, "n"),
        ({"stop": ["}"]}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 10**30}, "seed"),
        ({"seed": 1.5}, "sampling_params.seed"),
        ({"seed": True}, "sampling_params.seed"),
        ({"token_ids": "hello"}, "token_ids"),
        ({"token_ids": [1, True]}, "token_ids[1]"),
        ({"temperature": "hot"}, "sampling_params.temperature"),
        ({"logprobs": 66}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logit_bias": {"64": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"logit_bias": {"\u0663": 1.0}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1.0}}, "logit_bias"),
        ({"logit_bias": {"3": 100.5}}, "logit_bias"),
        ({"logit_bias": {"3": "x"}}, "sampling_params.logit_bias[...]"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-30}, "repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"num_made": 2}, "num_made"),
        ({"num_made": -1}, "num_made"),
        ({"structured_outputs": {"regex": "a"}}, "sampling_params.structured_outputs"),
        ({"bad_words": ["x"]}, "sampling_params"),
    ],
)
def test_each_mistake_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(read_json(GenerateRequest, body(**fields)), LIMITS)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "text", [b"{", b'{"model":"demo","token_ids":[1],"sampling_params":{"temperature":NaN}}', b"\xff", b"[]"]
)
def test_what_is_no_request_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_json(GenerateRequest, text)


def test_a_prompt_beyond_the_context_has_its_own_code() -> None:
    check_request(read_json(GenerateRequest, body(max_tokens=30)), LIMITS)
    with pytest.raises(InvalidRequest) as caught:
        check_request(read_json(GenerateRequest, body(max_tokens=31)), LIMITS)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_cannot_carry_are_refused_too(value: float) -> None:
    for params in (SamplingParams(temperature=value), SamplingParams(top_p=value)):
        with pytest.raises(InvalidRequest):
            check_request(GenerateRequest(model="demo", token_ids=[1], sampling_params=params), LIMITS)


def test_options_are_those_of_the_request() -> None:
    asked = SequenceSampling(params_of(logit_bias={"7": 2, "07": 3}, logprobs=4, presence_penalty=1), [1])
    ids, values = asked.bias(torch.device("cpu"))
    assert (ids.tolist(), values.tolist()) == ([7], [3.0])
    assert (asked.num_logprobs, asked.params.is_penalised, asked.is_plain) == (4, True, False)
    assert not params_of(temperature=0, top_k=4, top_p=0.5).is_truncated, "greedy needs no filter"


@pytest.mark.parametrize(
    ("fields", "is_plain"),
    [({}, True), ({"top_k": -1, "seed": 3, "logprobs": 2}, True), ({"temperature": 0}, False), ({"min_p": 0.1}, False),
     ({"top_k": 4}, False), ({"top_p": 0.5}, False), ({"logit_bias": {"3": 1}}, False)],
)  # fmt: skip
def test_only_what_changes_logits_is_not_plain(fields: dict[str, Any], is_plain: bool) -> None:
    assert params_of(**fields).is_plain == is_plain


@each_case("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_seed_is_given_only_if_there_is_one(seed: int) -> None:
    request = read_json(GenerateRequest, body(seed=seed))
    check_request(request, LIMITS)
    assert request.sampling_params.seed == seed
    assert params_of().seed is None


def test_stop_tokens_come_beside_the_models_own() -> None:
    assert stop_ids(params_of(stop_token_ids=[9]), frozenset({2})) == {2, 9}
    assert stop_ids(params_of(stop_token_ids=[9], ignore_eos=True), frozenset({2})) == {9}
    assert stop_ids(params_of(ignore_eos=True), frozenset({2})) == frozenset()
    constrained = params_of(ignore_eos=True, structured_outputs={"json_object": True})
    assert stop_ids(constrained, frozenset({2})) == {2}, "a complete answer ends"
