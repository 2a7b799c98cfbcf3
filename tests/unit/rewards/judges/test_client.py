from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from contracts.tasks.judges import JudgeEndpoint, JudgeRule
from rewards.judges.client import FIRST_AWAY_SECONDS, MAX_FAILURES, JudgeClient, NoReply, Reply, new_breaker
from runtime.circuit import CircuitBreaker
from tests.worlds.passing import Clock
from tests.worlds.servers.judge import JudgeServer, verdict

ENDPOINT = JudgeEndpoint(url="http://127.0.0.1:9/v1", model="m")
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def client(
    server: JudgeServer, http: httpx.Client, slept: list[float], breaker: CircuitBreaker | None = None, **changes: Any
) -> JudgeClient:
    rule = JudgeRule.model_validate({"name": "j", "url": server.url, "model": "m", "criteria": "c", **changes})
    return JudgeClient(rule, rule.endpoints[0], http, key="secret", breaker=breaker, sleep=slept.append)


def test_the_first_request_asks_for_json_and_keeps_nothing(server: JudgeServer, http: httpx.Client) -> None:
    reply = client(server, http, []).ask(MESSAGES)
    assert isinstance(reply, Reply)
    assert (reply.num_input, reply.num_output) == (100, 20)
    (asked,) = server.asked
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.body["store"] is False
    assert asked.body["temperature"] == 0
    schema = asked.body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["reason", "level"]
    assert schema["properties"]["level"]["enum"] == ["no", "yes"]
    assert "logprobs" not in asked.body


def test_an_endpoint_that_refuses_a_field_is_asked_with_less_and_remembered(
    server: JudgeServer, http: httpx.Client
) -> None:
    server.refuses = {"response_format", "logprobs"}
    asking = client(server, http, [], expected_level=True)
    assert isinstance(asking.ask(MESSAGES), Reply)
    assert isinstance(asking.ask(MESSAGES), Reply)
    assert ["response_format" in asked.body for asked in server.asked] == [True, True, False, False]
    assert all(asked.body["store"] is False for asked in server.asked)


def test_fields_of_the_rule_replace_ours(server: JudgeServer, http: httpx.Client) -> None:
    request = {"max_completion_tokens": 900, "temperature": 1, "reasoning_effort": "low"}
    client(server, http, [], request=request).ask(MESSAGES)
    body = server.asked[0].body
    assert "max_tokens" not in body
    assert (body["temperature"], body["max_completion_tokens"], body["reasoning_effort"]) == (1, 900, "low")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_be_better_the_next_time_is_tried_again_with_jitter(
    server: JudgeServer, http: httpx.Client, status: int
) -> None:
    server.fails = [(status, {})] * 2
    slept: list[float] = []
    assert isinstance(client(server, http, slept).ask(MESSAGES), Reply)
    assert 0.25 <= slept[0] <= 0.75
    assert 0.5 <= slept[1] <= 1.5


def test_two_retries_are_all(server: JudgeServer, http: httpx.Client) -> None:
    server.fails = [(429, {})] * 9
    answer = client(server, http, []).ask(MESSAGES)
    assert isinstance(answer, NoReply)
    assert "HTTP 429" in answer.reason
    assert answer.kind == "busy"
    assert len(server.asked) == 3


def test_retry_after_is_honoured_and_a_long_one_is_not_waited_for(server: JudgeServer, http: httpx.Client) -> None:
    slept: list[float] = []
    server.fails = [(429, {"retry-after": "7"})]
    assert isinstance(client(server, http, slept).ask(MESSAGES), Reply)
    assert slept == [7.0]
    server.fails = [(429, {"retry-after": "3600"})]
    assert isinstance(client(server, http, slept).ask(MESSAGES), NoReply)
    server.fails = [(429, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})]
    assert isinstance(client(server, http, slept).ask(MESSAGES), Reply)
    assert len(slept) == 2
    assert slept[1] < 1.0


@pytest.mark.parametrize("status", [401, 403, 404, 413])
def test_what_stays_wrong_is_not_tried_again(server: JudgeServer, http: httpx.Client, status: int) -> None:
    server.fails = [(status, {})]
    answer = client(server, http, []).ask(MESSAGES)
    assert isinstance(answer, NoReply)
    assert answer.reason.startswith(f"HTTP {status}" if status == 413 else f"{ENDPOINT.model}: HTTP {status}")
    assert "secret" not in answer.reason
    assert len(server.asked) == 1


def test_a_timeout_is_tried_again_and_then_no_reply(server: JudgeServer, http: httpx.Client) -> None:
    server.seconds = 0.3
    answer = client(server, http, [], read_seconds=0.05, retries=1).ask(MESSAGES)
    assert isinstance(answer, NoReply)
    assert "ReadTimeout" in answer.reason
    assert len(server.asked) == 2


def test_nobody_there_is_no_reply(http: httpx.Client, server: JudgeServer) -> None:
    server.close()
    answer = client(server, http, []).ask(MESSAGES)
    assert isinstance(answer, NoReply)
    assert "ConnectError" in answer.reason


@pytest.mark.parametrize(
    "choice",
    [{"message": {"refusal": "no", "content": None}}, {"message": None}, {}, {"message": "x"}, {"text": "completion"}],
)
def test_what_is_no_chat_completion_is_no_reply(
    server: JudgeServer, http: httpx.Client, choice: dict[str, Any]
) -> None:
    server.decide = lambda _: choice
    assert isinstance(client(server, http, []).ask(MESSAGES), NoReply)


def test_log_probs_come_with_their_alternatives(server: JudgeServer, http: httpx.Client) -> None:
    content = [{"token": "yes", "logprob": -0.1, "top_logprobs": [{"token": "no", "logprob": -2.0}]}]
    server.decide = lambda _: {"message": {"content": verdict("yes")}, "logprobs": {"content": content}}
    reply = client(server, http, [], expected_level=True).ask(MESSAGES)
    assert isinstance(reply, Reply)
    assert server.asked[0].body["logprobs"] is True
    (token,) = reply.tokens
    assert token.alternatives == {"yes": -0.1, "no": -2.0}


def test_a_dead_judge_is_left_alone_until_a_probe_finds_it_alive(server: JudgeServer, http: httpx.Client) -> None:
    clock = Clock()
    asking = client(server, http, [], new_breaker(ENDPOINT, clock), retries=2)
    server.fails = [(500, {})] * MAX_FAILURES
    assert isinstance(asking.ask(MESSAGES), NoReply)
    for _ in range(50):
        answer = asking.ask(MESSAGES)
        assert isinstance(answer, NoReply)
        assert answer.reason.startswith(f"{ENDPOINT.model}: it does not answer")
    assert len(server.asked) == MAX_FAILURES
    clock.now += FIRST_AWAY_SECONDS
    server.fails = [(500, {})]
    assert isinstance(asking.ask(MESSAGES), NoReply)
    assert len(server.asked) == MAX_FAILURES + 1
    clock.now += FIRST_AWAY_SECONDS
    assert isinstance(asking.ask(MESSAGES), NoReply)  # the pause has doubled
    clock.now += FIRST_AWAY_SECONDS
    assert isinstance(asking.ask(MESSAGES), Reply)
    assert isinstance(asking.ask(MESSAGES), Reply)


def test_failures_of_calls_that_were_under_way_do_not_lengthen_the_pause() -> None:
    clock = Clock()
    breaker = new_breaker(ENDPOINT, clock)
    for number in range(1, 17):
        breaker.failed()
        assert breaker.is_open == (number >= MAX_FAILURES)
    clock.now += FIRST_AWAY_SECONDS
    assert breaker.allows()


def test_too_many_requests_is_no_sign_of_death(server: JudgeServer, http: httpx.Client) -> None:
    breaker = new_breaker(ENDPOINT)
    server.fails = [(429, {})] * 9
    asking = client(server, http, [], breaker)
    for _ in range(3):
        asking.ask(MESSAGES)
    assert not breaker.is_open


def test_a_reply_that_drips_for_ever_ends(server: JudgeServer) -> None:
    def dripping(_request: httpx.Request) -> httpx.Response:
        def body() -> Any:
            for _ in range(1000):
                time.sleep(0.01)
                yield b" "

        return httpx.Response(200, content=body())

    with httpx.Client(transport=httpx.MockTransport(dripping)) as slow:
        started = time.monotonic()
        answer = client(server, slow, [], read_seconds=0.05, connect_seconds=0.05, retries=0).ask(MESSAGES)
    assert isinstance(answer, NoReply)
    assert "does not end" in answer.reason
    assert time.monotonic() - started < 10.0, "the whole reply takes that long"
