"""The wire to engines: what is sent, and what is made of the events of ours and of vLLM's."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.cache_salts import scope_of
from contracts.errors import EngineFailed, InvalidRequest
from contracts.sampling import ExpertShape, Sampling, Span
from engines.own.kind import own_body
from engines.registry import KINDS, kind_of
from engines.token_route import read_event
from engines.vllm.kind import vllm_body, vllm_reader
from engines.wire import EngineRequest, Piece, System
from services.inference.engine.connection import Lines
from services.inference.engine.state import Progress, RequestNotTaken, read_refusal

SAMPLING = Sampling(temperature=0.7, max_tokens=8)
REQUEST = EngineRequest("demo", [1, 2], SAMPLING, "one:0")
SYSTEM = System("vllm/0.32", "bfloat16")


def event(*token_ids: int, reason: str | None = None, **fields: Any) -> bytes:
    content = [
        {"token_id": token_id, "logprob": -0.5, "rank": 1, "top_logprobs": [{"token_id": token_id, "logprob": -0.5}]}
        for token_id in token_ids
    ]
    choice = {"index": 0, "token_ids": token_ids, "logprobs": {"content": content}, "finish_reason": reason}
    return json.dumps({"request_id": "one:0", "output_mode": "tokens", "choices": [choice | fields]}).encode()


def versions(*spans: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"version": version, "start": start, "end": end} for version, start, end in spans]


def test_every_sampling_option_is_sent() -> None:
    sampling = Sampling(
        temperature=0.0, top_p=0.9, top_k=5, min_p=0.1, max_tokens=8, seed=7, repetition_penalty=1.1, frequency_penalty=0.2,
        presence_penalty=0.3, logit_bias={4: -100.0},
    )  # fmt: skip
    schema = {"json": {"type": "object"}}
    request = EngineRequest("demo@v3", [1, 2], sampling, "one:0", background=True, constraint=schema, num_top=3)

    body = json.loads(own_body(request, [9]))

    assert body == {
        "request_id": "one:0", "model": "demo@v3", "token_ids": [1, 2, 9], "stream": True, "priority": 1, "num_made": 1,
        "sampling_params": {
            "temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_tokens": 7, "seed": 7, "repetition_penalty": 1.1,
            "frequency_penalty": 0.2, "presence_penalty": 0.3, "logit_bias": {"4": -100.0}, "structured_outputs": schema,
            "logprobs": 4,
        },
    }  # fmt: skip
    upstream = json.loads(vllm_body(request, [9]))
    assert {name: body[name] for name in body.keys() - {"model", "num_made"}} | {
        "stream_options": {"include_usage": True}
    } == upstream


def test_our_engine_is_told_the_arm_whose_slot_is_meant() -> None:
    request = REQUEST._replace(arm="canary", model="demo@v4")
    assert (json.loads(own_body(request))["arm"], json.loads(own_body(request))["model"]) == ("canary", "demo@v4")
    assert "arm" not in json.loads(own_body(request._replace(arm="live")))


def test_vllm_is_told_the_name_of_an_adapter_and_its_tokens_have_that_version() -> None:
    request = REQUEST._replace(adapter=4)
    assert json.loads(vllm_body(request))["model"] == "demo@v4"
    assert json.loads(vllm_body(request._replace(model="demo@v0", adapter=0)))["model"] == "demo", "the base"
    assert "model" not in json.loads(vllm_body(REQUEST._replace(model="demo@v4"))), "it holds one version"
    read = vllm_reader(request, 2)
    assert read(event(5)).spans == [Span(2, 4)]
    assert read(event(6, reason="stop", weight_versions=versions(("default", 0, 2)))).spans == [Span(2, 4)]
    with pytest.raises(EngineFailed, match="the base under the adapter v4 is v7"):
        read(event(7, weight_versions=versions(("v7", 0, 1))))
    assert vllm_reader(REQUEST, 2)(event(5, weight_versions=versions(("v7", 0, 1)))).spans == [Span(2, 7)]


def test_a_server_that_forgot_an_adapter_did_not_take_the_request() -> None:
    error = {"message": "The model `demo@v9` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    assert isinstance(read_refusal(404, b"", json.dumps({"error": error}).encode()), RequestNotTaken)


def test_vllm_cannot_go_on_where_a_grammar_or_a_penalty_counts_what_was_made() -> None:
    can = {name: kind_of(name).wire.can_continue for name in KINDS}
    for request in (
        REQUEST._replace(constraint={"json": {}}),
        REQUEST._replace(sampling=msgspec.structs.replace(SAMPLING, frequency_penalty=0.5)),
        REQUEST._replace(sampling=msgspec.structs.replace(SAMPLING, presence_penalty=0.5)),
    ):
        assert (can["millrace"](request), can["vllm"](request)) == (True, False)
    assert can["vllm"](REQUEST._replace(sampling=msgspec.structs.replace(SAMPLING, repetition_penalty=1.5)))


def test_a_salt_parts_scopes_versions_and_policies_and_says_none_of_them() -> None:
    assert "cache_salt" not in json.loads(own_body(REQUEST.salted(3)))
    request = REQUEST._replace(cache_scope="app/user@acme")
    salts = [
        request.salted(3).cache_salt,
        request.salted(4).cache_salt,
        request.salted(None).cache_salt,
        request._replace(cache_scope="app/user@acm").salted(3).cache_salt,
        request._replace(model="other").salted(3).cache_salt,
    ]
    assert len(set(salts)) == 5
    assert request._replace(model="demo@v3").salted(3).cache_salt == salts[0], "one name of the version or another"
    assert all(salt is not None and salt.isalnum() and len(salt) <= 128 for salt in salts)  # as vLLM takes them
    scopes = [scope_of(salt) for salt in salts if salt is not None]
    assert len(set(scopes)) == 3, "an engine sees which are of one scope, whatever the version"
    assert len(set(scopes[:3])) == 1
    body = json.loads(vllm_body(request.salted(3)))
    assert (body["cache_salt"], body["stream_options"]) == (salts[0], {"include_usage": True})


def test_cached_tokens_are_read_where_they_are_told_and_are_of_the_prompt_alone() -> None:
    def told(number: object) -> bytes:
        details = {"prompt_tokens_details": {"cached_tokens": number}}
        return json.dumps({**json.loads(event(5)), "usage": {"prompt_tokens": 9, **details}}).encode()

    assert read_event(told(7), 0).num_cached == 7
    assert read_event(event(5), 0).num_cached is None
    assert read_event(told(None), 0).num_cached is None
    assert read_event(b'{"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 1}}}', 0).num_cached == 1
    for wrong in (-1, "7", 2**31):
        with pytest.raises(EngineFailed):
            read_event(told(wrong), 0)
    progress = Progress(REQUEST)
    progress.begin(None)
    assert progress.add(read_event(told(7), 0)).num_cached == 2, "the prompt has two tokens; the rest was made before"


def test_a_support_is_the_tokens_with_a_probability() -> None:
    def told(*logprobs: float) -> bytes:
        top = [{"token_id": 5 + place, "logprob": value} for place, value in enumerate(logprobs)]
        content = [{"token_id": 5, "logprob": -0.5, "top_logprobs": top}]
        return event(5, logprobs={"content": content})

    assert json.loads(own_body(REQUEST._replace(with_support=True, num_top=2)))["sampling_params"]["logprobs"] == 65
    [token] = read_event(told(-0.5, -1.0, -9999.0), 0, 1, with_support=True).tokens
    assert (token.support, token.top) == ((5, 6), ((5, -0.5),))
    assert read_event(told(*[-4.0] * 64), 0, with_support=True).tokens[0].support == tuple(range(5, 69))
    assert read_event(told(*[-4.0] * 65), 0, with_support=True).tokens[0].support is None
    assert read_event(told(-0.5), 0, 1).tokens[0].support is None


def test_what_is_off_is_left_out_except_what_a_model_may_have_a_default_for() -> None:
    body = json.loads(own_body(REQUEST))

    assert body["sampling_params"] == {
        "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 8, "logprobs": 0,
    }  # fmt: skip
    assert body.keys() == {"request_id", "model", "token_ids", "stream", "sampling_params"}


def test_top_logprobs_are_ranked_and_cut() -> None:
    top = [{"token_id": 5, "logprob": -3.0}, {"token_id": 6, "logprob": -0.1}, {"token_id": 7, "logprob": -9999.0}]
    content = {"content": [{"token_id": 5, "logprob": -3.0, "top_logprobs": top}]}

    [token] = read_event(event(5, logprobs=content), 0, num_top=2).tokens

    assert (token.id, token.logprob, token.top) == (5, -3.0, ((6, -0.1), (5, -3.0)))


def test_experts_come_as_packed_numbers_with_their_shape() -> None:
    chosen = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
    file = io.BytesIO()
    np.save(file, chosen)

    piece = read_event(event(5, reason="stop", routed_experts=base64.b64encode(file.getvalue()).decode()), 0)

    assert piece.experts is not None
    assert piece.experts.shape == ExpertShape(3, 2, 4)
    assert np.frombuffer(piece.experts.ids, "<u2").reshape(3, 2, 4).tolist() == chosen.tolist()


def test_versions_told_at_the_end_arrive_with_the_last_piece() -> None:
    progress = Progress(REQUEST)
    progress.begin(SYSTEM)

    pieces = [progress.add(read_event(data, 0)) for data in (event(5), event(6, 7), event(8, reason="stop"))]
    assert [piece.spans for piece in pieces] == [[], [], []]

    progress = Progress(REQUEST)
    progress.begin(SYSTEM)
    last = event(8, reason="stop", weight_versions=versions(("v7", 0, 2), ("v8", 2, 3)))
    pieces = [progress.add(read_event(data, 0)) for data in (event(5), event(6), last)]

    assert [piece.spans for piece in pieces] == [[], [], [Span(0, 7), Span(2, 8)]]
    assert [piece.system for piece in pieces] == [SYSTEM, None, None]


def test_versions_that_are_repeated_at_the_end_add_nothing() -> None:
    progress = Progress(REQUEST)
    progress.begin(None)
    told = [
        event(5, weight_versions=versions(("v7", 0, 1))),
        event(6, weight_versions=versions(("v8", 1, 2))),
        event(7, reason="length", weight_versions=versions(("v7", 0, 1), ("v8", 1, 3))),
    ]

    assert [progress.add(read_event(data, 0)).spans for data in told] == [[Span(0, 7)], [Span(1, 8)], []]


def test_an_engine_that_changes_its_mind_about_a_version_is_refused() -> None:
    progress = Progress(REQUEST)
    progress.begin(None)
    progress.add(read_event(event(5, weight_versions=versions(("v7", 0, 1))), 0))

    with pytest.raises(EngineFailed, match="v8 for token 0, and another version before"):
        progress.add(read_event(event(6, reason="stop", weight_versions=versions(("v8", 0, 2))), 0))


@pytest.mark.parametrize("label", ["default", "", "v07", "7.1"])
def test_a_label_that_is_no_version_of_ours_tells_nothing(label: str) -> None:
    assert read_event(event(5, reason="stop", weight_versions=versions((label, 0, 1))), 0).spans == []


def test_an_answer_has_no_versions_once_some_of_them_are_lost() -> None:
    progress = Progress(REQUEST)
    progress.begin(SYSTEM)
    progress.add(read_event(event(5), 0))
    progress.begin(SYSTEM)  # the engine of the first token was lost before it told its version

    first = progress.add(read_event(event(6), 1))
    last = progress.add(read_event(event(7, reason="stop", weight_versions=versions(("v7", 0, 2))), 1))

    assert first.lost_versions
    assert last.lost_versions


def test_the_experts_of_an_answer_that_two_engines_made_are_not_kept() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((4, 1, 1), np.uint8))
    told = base64.b64encode(file.getvalue()).decode()
    progress = Progress(REQUEST)
    progress.begin(None)
    progress.add(read_event(event(5, weight_versions=versions(("v7", 0, 1))), 0))
    progress.begin(None)

    last = progress.add(
        read_event(event(6, reason="stop", weight_versions=versions(("v7", 0, 1)), routed_experts=told), 1)
    )

    assert (last.experts, last.spans, last.lost_versions) == (None, [], False)


def test_lines_are_the_same_wherever_they_are_cut() -> None:
    text = b"data: {}\n\ndata: []\nx"
    for size in range(1, len(text) + 1):
        lines = Lines()
        found = [line for at in range(0, len(text), size) for line in lines.split(text[at : at + size])]
        assert found == [b"data: {}", b"", b"data: []"]


def test_a_line_has_a_limit() -> None:
    lines = Lines(most_bytes=10)
    assert lines.split(b"0123456789") == []
    with pytest.raises(EngineFailed, match="more than 10 bytes without an end of line"):
        lines.split(b"0")


def test_two_systems_are_both_named() -> None:
    ours = System("millrace/1", "float32")

    assert SYSTEM.joined(None) == SYSTEM.joined(SYSTEM) == SYSTEM
    assert SYSTEM.joined(ours) == System("millrace/1 + vllm/0.32", "float32 + bfloat16")
    assert msgspec.structs.replace(SYSTEM, raw_logprobs=True).joined(ours).raw_logprobs


def test_a_piece_without_a_token_keeps_what_it_says() -> None:
    usage = b'{"choices": [], "system": {"engine": "x", "dtype": null}}'

    assert read_event(usage, 0) == Piece([], [], None, system=System("x", None))


def test_a_grammar_that_vllm_refuses_in_its_stream_is_the_requests_fault() -> None:
    told = {"error": {"message": "Grammar error: 1(12)", "type": "BadRequestError", "param": None, "code": 400}}
    with pytest.raises(InvalidRequest, match="Grammar error"):
        read_event(json.dumps(told).encode(), 0)
    told["error"]["code"] = 500
    with pytest.raises(EngineFailed):
        read_event(json.dumps(told).encode(), 0)
