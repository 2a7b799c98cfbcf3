"""Engines that die, logs that are full, clients that leave."""

from __future__ import annotations

import json
import random
import string
import threading

import httpx
import msgspec
import openai
import pytest

from contracts.records import encode, unpack_floats, unpack_ids
from contracts.sampling import Span
from tests.unit.services.inference.conftest import Inference, text_of
from tests.unit.services.serving import wait_until

pytestmark = pytest.mark.usefixtures("alone")
TEXT = "Tisch für 4: {ok}"


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_goes_on_where_the_engine_died(inference: Inference, stream: bool, by_event: bool) -> None:
    engine = inference.engine
    engine.die_after, engine.dies_by_event = 4, by_event
    text = text_of(inference.ask(stream=stream))

    first, second = engine.requests
    assert text == TEXT
    assert second["token_ids"] == first["token_ids"] + engine.answer[:4]
    assert second["sampling_params"]["max_tokens"] == first["sampling_params"]["max_tokens"] - 4
    [record] = inference.logged()
    assert unpack_ids(record.open().completion_ids) == engine.answer
    assert len(unpack_floats(record.open().logprobs)) == len(engine.answer)
    assert record.finish_reason == "stop"


def test_a_version_that_goes_on_gets_its_own_span(inference: Inference) -> None:
    engine = inference.engine
    engine.hold_after = engine.die_after = 4
    engine.stays_dead = True
    answers: list[openai.types.chat.ChatCompletion] = []
    asking = threading.Thread(target=lambda: answers.append(inference.ask()))
    asking.start()
    wait_until(lambda: engine.requests)
    engine.serving = False
    wait_until(lambda: engine.num_closed)
    engine.version, engine.serving, engine.hold_after = 5, True, None
    asking.join()

    [record] = inference.logged()
    assert record.spans == (Span(0, 3), Span(4, 5))
    assert answers[0].system_fingerprint == "demo@v5"


def test_one_choice_that_fails_fails_all_and_none_is_logged_as_whole(inference: Inference) -> None:
    engine = inference.engine
    engine.die_after, engine.survives = 4, True
    with pytest.raises(openai.InternalServerError, match="ended an answer early"):
        inference.ask(n=3)

    wait_until(inference.logged)
    assert {record.finish_reason for record in inference.logged()} <= {"error", "stop"}
    assert "error" in {record.finish_reason for record in inference.logged()}


def test_a_request_waits_for_an_engine_that_restarts(inference: Inference) -> None:
    inference.engine.serving = False
    back = threading.Timer(0.4, lambda: setattr(inference.engine, "serving", True))
    back.start()

    assert inference.ask().choices[0].message.content == TEXT


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_engine_is_asked_once_also_by_an_sdk_that_retries(inference: Inference, stream: bool) -> None:
    inference.engine.mute = True
    asking = inference.client.with_options(max_retries=2).chat.completions
    with pytest.raises(openai.InternalServerError, match=r"did not accept the request within 1\.5 s") as error:
        asking.create(model="demo", messages=[{"role": "user", "content": "hi"}], stream=stream)
    inference.engine.mute = False

    assert (error.value.status_code, error.value.code) == (504, "engine_silent")
    assert len(inference.engine.requests) == 1
    assert inference.logged() == []


def test_an_engine_that_cuts_an_answer_off_and_lives_is_not_asked_again(inference: Inference) -> None:
    engine = inference.engine
    engine.die_after, engine.survives = 4, True
    with pytest.raises(openai.InternalServerError, match="ended an answer early"):
        inference.ask()

    assert len(engine.requests) == 1
    wait_until(inference.logged)
    [record] = inference.logged()
    assert record.finish_reason == "error"
    assert unpack_ids(record.open().completion_ids) == engine.answer[:4]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
def test_an_engine_that_stays_away_is_said_with_503(inference: Inference, stream: bool) -> None:
    inference.engine.serving = False

    with pytest.raises(openai.InternalServerError, match=r"no engine came back within 1\.5 s") as error:
        inference.ask(stream=stream)

    assert (error.value.status_code, error.value.code) == (503, "unavailable")
    assert error.value.response.headers["retry-after"] == "1"
    assert inference.logged() == []


@pytest.mark.slow
def test_an_engine_lost_for_good_in_mid_stream_ends_it_with_an_error(inference: Inference) -> None:
    engine = inference.engine
    engine.die_after, engine.stays_dead = 4, True
    lines: list[str] = []
    _read_stream(inference, lines)

    assert "no engine came back" in lines[-1]
    text = _text(lines[:-1])
    wait_until(inference.logged)
    [record] = inference.logged()
    assert record.finish_reason == "error"
    assert record.open().text == text != ""


def test_done_is_withheld_until_the_generation_is_durable(inference: Inference) -> None:
    inference.log.open.clear()
    lines: list[str] = []
    reading = threading.Thread(target=_read_stream, args=(inference, lines))
    reading.start()
    assert inference.log.waiting.wait(60)
    wait_until(lambda: _text(lines) == TEXT)

    assert "data: [DONE]" not in lines
    assert '"finish_reason":"stop"' not in "".join(lines)
    assert inference.logged() == []
    inference.log.open.set()
    reading.join()
    assert lines[-1] == "data: [DONE]"
    assert len(inference.logged()) == 1


def test_a_plain_answer_waits_for_the_log_too(inference: Inference) -> None:
    inference.log.open.clear()
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(inference.ask()))
    asking.start()
    assert inference.log.waiting.wait(60)

    assert answers == []
    inference.log.open.set()
    asking.join()
    assert len(answers) == len(inference.logged()) == 1


def test_requests_that_wait_share_an_append(inference: Inference) -> None:
    inference.log.open.clear()
    asking = [threading.Thread(target=inference.ask) for _ in range(6)]
    for thread in asking:
        thread.start()
    wait_until(lambda: inference.engine.num_closed == len(asking))
    inference.log.open.set()
    for thread in asking:
        thread.join()

    assert len(inference.logged()) == len(asking)
    assert inference.log.num_appends <= 3


def test_an_answer_survives_a_full_log_and_says_so(inference: Inference) -> None:
    inference.log.full.set()

    plain = inference.client.chat.completions.with_raw_response.create(
        model="demo", messages=[{"role": "user", "content": "hi"}]
    )
    chunks = list(inference.ask(stream=True))
    counted = list(inference.ask(stream=True, stream_options={"include_usage": True}))

    assert plain.headers["x-millrace-logged"] == "false"
    assert plain.parse().choices[0].message.content == TEXT
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["millrace"] == {"logged": False}
    assert counted[-1].model_extra is not None
    assert counted[-1].model_extra["millrace"] == {"logged": False}
    inference.log.full.clear()
    again = inference.client.chat.completions.with_raw_response.create(
        model="demo", messages=[{"role": "user", "content": "hi"}]
    )
    assert "x-millrace-logged" not in again.headers
    assert "millrace" not in list(inference.ask(stream=True))[-1].model_extra


def test_a_generation_too_large_for_the_log_costs_only_its_own_record(inference: Inference) -> None:
    inference.ask(messages=[{"role": "user", "content": "hi"}])
    [small] = [len(encode(record)) for record in inference.logged()]
    inference.log.waiting.clear()
    inference.log.open.clear()
    inference.log.largest = small + 50
    noise = "".join(random.Random(7).choices(string.ascii_letters, k=150))
    answers: dict[str, httpx.Response] = {}

    def ask(name: str, content: str) -> None:
        answers[name] = inference.post(
            msgspec.json.encode({"model": "demo", "messages": [{"role": "user", "content": content}]}).decode()
        )

    asking = [threading.Thread(target=ask, args=pair) for pair in [("first", "hi"), ("large", noise), ("small", "hi")]]
    for thread in asking:
        thread.start()
        wait_until(inference.log.waiting.is_set)
    wait_until(lambda: inference.engine.num_closed == 4)
    inference.log.open.set()
    for thread in asking:
        thread.join()

    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert {name for name, answer in answers.items() if "x-millrace-logged" in answer.headers} == {"large"}
    assert len(inference.logged()) == 3


def test_a_client_that_leaves_a_stream_is_logged_as_cancelled(inference: Inference) -> None:
    inference.engine.hold_after = 6
    body = '{"model": "demo", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    headers = {"authorization": f"Bearer {inference.key}"}
    with httpx.stream("POST", f"{inference.url}/v1/chat/completions", content=body, headers=headers) as response:
        assert any(' "' in line for line in response.iter_lines()), "the sixth token is a space"

    wait_until(inference.logged)
    [record] = inference.logged()
    assert record.finish_reason == "cancelled"
    assert record.open().text == "Tisch "
    assert unpack_ids(record.open().completion_ids) == inference.engine.answer[:6]
    wait_until(lambda: inference.engine.num_closed == 1)
    assert not inference.engine.go.is_set()


def test_a_client_that_leaves_a_plain_request_is_logged_as_cancelled(inference: Inference) -> None:
    inference.engine.hold_after = 6
    with pytest.raises(openai.APITimeoutError):
        inference.ask(inference.client.with_options(timeout=0.5))

    wait_until(inference.logged)
    assert [record.finish_reason for record in inference.logged()] == ["cancelled"]
    wait_until(lambda: inference.engine.num_closed == 1)


@pytest.mark.slow
def test_a_client_that_leaves_before_the_first_token_leaves_nothing(inference: Inference) -> None:
    inference.engine.hold_after = 0
    for stream in (False, True):
        with pytest.raises(openai.APITimeoutError):
            inference.ask(inference.client.with_options(timeout=1.0), stream=stream)

    wait_until(lambda: inference.engine.num_closed == 2)
    assert inference.logged() == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_has_not_answered_yet_hears_that_the_client_left(inference: Inference, stream: bool) -> None:
    inference.engine.mute = True
    with pytest.raises(openai.APITimeoutError):
        inference.ask(inference.client.with_options(timeout=0.5), stream=stream)

    wait_until(lambda: inference.engine.num_closed == 1)
    inference.engine.mute = False
    assert inference.logged() == []


def _text(lines: list[str]) -> str:
    return "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines)


def _read_stream(inference: Inference, lines: list[str]) -> None:
    body = '{"model": "demo", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    headers = {"authorization": f"Bearer {inference.key}"}
    with httpx.stream("POST", f"{inference.url}/v1/chat/completions", content=body, headers=headers) as response:
        lines += (line for line in response.iter_lines() if line)
