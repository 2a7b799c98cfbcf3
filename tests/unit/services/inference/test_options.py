"""Biases, penalties, formats, likeliest tokens and token ids: to the engine, into the log, and back to the caller."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from contracts.answers.grammar import spaced
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import make_tokenizer
from tests.unit.services.serving import wait_until

PRIVATE: dict[str, Any] = {"metadata": {"task": "private"}, "store": True, "temperature": 1}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
PROMPT = "<|user|>table for 4<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("changes", "sent", "reason"),
    [
        ({"logit_bias": {"5": -100, "7": 1.5}}, {"logit_bias": {"5": -100, "7": 1.5}}, "biased"),
        ({"logit_bias": {"5": 0}}, {}, ""),
        ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}, "penalised"),
        ({"presence_penalty": -1}, {"presence_penalty": -1}, "penalised"),
        ({"extra_body": {"repetition_penalty": 1.1}}, {"repetition_penalty": 1.1}, "penalised"),
        ({"frequency_penalty": 0, "presence_penalty": 0, "extra_body": {"repetition_penalty": 1}}, {}, ""),
    ],
)
def test_what_changes_the_distribution_reaches_engine_and_log(
    inference: Inference, changes: dict[str, Any], sent: dict[str, Any], reason: str
) -> None:
    answer = inference.ask(**PRIVATE, **changes)

    [record], params = inference.logged(), inference.engine.requests[0]["sampling_params"]
    names = ("logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty")
    off = {"repetition_penalty": 1.0}
    assert {name: params[name] for name in names if name in params} == off | sent
    assert record.sampling.off_support == reason
    assert answer.model_extra["sampling"].items() >= sent.items()


def test_a_task_that_owns_its_sampling_keeps_its_distribution(inference: Inference) -> None:
    answer = inference.ask(logit_bias={"5": -100}, frequency_penalty=1, extra_body={"repetition_penalty": 2})

    [record], params = inference.logged(), inference.engine.requests[0]["sampling_params"]
    assert {"logit_bias", "frequency_penalty"}.isdisjoint(params)
    assert params["repetition_penalty"] == 1
    assert not record.sampling.off_support
    used = answer.model_extra["sampling"]
    assert (used["logit_bias"], used["frequency_penalty"], used["repetition_penalty"]) == ({}, 0, 1)


def test_operators_may_penalise_under_either_owner(inference: Inference) -> None:
    inference.ask(inference.operator, presence_penalty=1, extra_headers={"x-millrace-purpose": "sentinel"})
    assert inference.engine.requests[0]["sampling_params"]["presence_penalty"] == 1


@pytest.mark.parametrize("task", ["booking", "private"])
@pytest.mark.parametrize(("wanted", "schema"), [({"type": "json_object"}, {"type": "object"}), (FORMAT, SCHEMA)])
def test_a_format_is_enforced_under_either_owner(
    inference: Inference, task: str, wanted: dict[str, Any], schema: dict[str, Any]
) -> None:
    answer = inference.ask(**PRIVATE | {"metadata": {"task": task}}, response_format=wanted)

    [record] = inference.logged()
    assert inference.engine.requests[0]["sampling_params"]["structured_outputs"] == {"json": spaced(schema)}
    assert (record.sampling.constraint, record.sampling.off_support) == (wanted["type"], "constrained")
    assert record.open().response_format == wanted
    assert answer.model_extra["sampling"]["constraint"] == wanted["type"]


def test_text_has_no_grammar(inference: Inference) -> None:
    inference.ask(response_format={"type": "text"})

    assert "structured_outputs" not in inference.engine.requests[0]["sampling_params"]
    assert inference.logged()[0].open().response_format is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_the_engine_refuses_is_named(inference: Inference, stream: bool) -> None:
    inference.engine.refusal = {
        "message": "no answer can meet it",
        "code": "invalid_schema",
        "param": "structured_outputs",
    }
    with pytest.raises(openai.BadRequestError, match="no answer can meet it") as refused:
        inference.ask(response_format=FORMAT, stream=stream)

    assert (refused.value.code, refused.value.param) == ("invalid_schema", "response_format")
    assert inference.logged() == []


@pytest.mark.usefixtures("alone")
def test_a_grammar_that_cannot_go_on_ends_the_answer_by_name(inference: Inference) -> None:
    engine = inference.engine
    engine.dies_by_event = engine.survives = True
    engine.death_code = "grammar_stuck"
    for stream in (False, True):
        engine.die_after = 3
        with pytest.raises(openai.APIError) as ended:
            list(inference.ask(response_format=FORMAT, stream=stream))
        assert (ended.value.code, ended.value.param) == ("grammar_stuck", "response_format")
    wait_until(lambda: [record.finish_reason for record in inference.logged()] == ["error", "error"])


def test_what_an_engine_cannot_do_is_named(inference: Inference) -> None:
    inference.engine.refusal = {
        "message": "`logit_bias` is not supported", "code": "unsupported_parameter", "param": "logit_bias",
    }  # fmt: skip
    with pytest.raises(openai.BadRequestError) as refused:
        inference.ask(**PRIVATE, logit_bias={"5": 1})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "logit_bias")


def test_a_token_that_does_not_exist_is_refused(inference: Inference) -> None:
    with pytest.raises(openai.BadRequestError, match="99999 is not a token") as refused:
        inference.ask(logit_bias={"99999": 1})
    assert refused.value.param == "logit_bias"
    assert inference.engine.requests == []


def test_the_likeliest_tokens_stand_beside_the_sampled_one(inference: Inference) -> None:
    whole = inference.ask(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    chunks = [c.choices[0].logprobs for c in inference.ask(logprobs=True, top_logprobs=3, stream=True) if c.choices]
    streamed = [entry for part in chunks if part for entry in part.content]

    assert streamed == whole
    assert [(top.token, top.logprob, top.bytes) for top in whole[0].top_logprobs] == [
        ("T", -0.5, [84]),
        ("U", -1.5, [85]),
        ("V", -2.5, [86]),
    ]
    assert all(len(entry.top_logprobs) == 3 for entry in whole)


def test_token_ids_come_back_as_vllm_gives_them(inference: Inference) -> None:
    prompt = make_tokenizer().encode(PROMPT).ids
    asked = {"extra_body": {"return_token_ids": True}, "n": 2}
    answer = inference.ask(**asked)
    first: dict[int, Any] = {}
    ids: dict[int, list[int]] = {0: [], 1: []}
    for chunk in inference.ask(**asked, stream=True):
        choice = chunk.choices[0]
        first.setdefault(choice.index, chunk)
        ids[choice.index] += choice.model_extra.get("token_ids", [])

    assert answer.model_extra["prompt_token_ids"] == prompt
    assert [choice.model_extra["token_ids"] for choice in answer.choices] == [inference.engine.answer] * 2
    assert [chunk.model_extra["prompt_token_ids"] for chunk in first.values()] == [prompt] * 2
    assert ids == {0: inference.engine.answer, 1: inference.engine.answer}
    assert "prompt_token_ids" not in inference.ask().model_extra
