"""The runner against a made-up endpoint: what is a verdict on the version, and what is only trouble on the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from contracts.errors import InvalidSettings, Unavailable, VersionNotResident
from contracts.ids import new_completion_id
from contracts.local_log import LocalLog
from contracts.outbox import message
from contracts.records import Experience, Score
from contracts.topics import EXPERIENCES
from pipelines.release.sentinels import SentinelFile, SentinelRunner
from tests.unit.pipelines.training.builders import experience, segment

ITEMS = SentinelFile(
    tuple({"messages": [{"role": "user", "content": str(n)}], "reference": str(n)} for n in range(3)), "h"
)
ABSENT = httpx.Response(404, json={"error": {"code": "version_not_resident"}})
Answer = Callable[[httpx.Request], httpx.Response]


def a_runner(log: LocalLog, answer: Answer, patience: float = 5.0) -> SentinelRunner:
    client = httpx.Client(base_url="http://web", transport=httpx.MockTransport(answer))
    return SentinelRunner(client, log, policy="p", concurrency=2, max_tokens=8, patience_seconds=patience)


def scored(key: str, value: float, log_prob: float = -0.5) -> Experience:
    exact = Score(name="exact", grader="json_exact/1#h", value=value)
    return experience(segment([1], [2], [log_prob]), key=key, revision=1, purpose="sentinel", scores=(exact,))


def answering(log: LocalLog, asked: list[dict[str, Any]], log_prob: float = -0.5) -> Answer:
    """An endpoint with the reward worker behind it: the sentinel `1` is answered wrongly; each score is sent twice."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body)
        completion_id = new_completion_id()
        value = 0.0 if body["metadata"]["reference"] == "1" else 1.0
        found = scored(f"{completion_id}:0", value, log_prob)
        log.append([message(EXPERIENCES, found.key, found)] * 2)
        return httpx.Response(200, json={"id": completion_id})

    return answer


def test_each_sentinel_is_asked_greedily_of_the_pinned_version_and_valued_in_order(event_log: LocalLog) -> None:
    asked: list[dict[str, Any]] = []
    found = a_runner(event_log, answering(event_log, asked)).run(ITEMS, 7, threading.Event())
    assert found == (7, (1.0, 0.0, 1.0), True)
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in asked} == {("p@v7", 0, 8)}
    assert {body["metadata"]["reference"] for body in asked} == {"0", "1", "2"}


def test_a_log_prob_that_is_not_finite_is_seen(event_log: LocalLog) -> None:
    runner = a_runner(event_log, answering(event_log, [], log_prob=float("nan")))
    assert not runner.run(ITEMS, 7, threading.Event()).finite


def test_a_version_the_engine_never_takes_is_named(event_log: LocalLog) -> None:
    with pytest.raises(VersionNotResident, match="did not take v7"):
        a_runner(event_log, lambda _: ABSENT, patience=0.1).run(ITEMS, 7, threading.Event())


def test_a_sentinel_that_the_endpoint_refuses_is_named_at_once(event_log: LocalLog) -> None:
    refusing = httpx.Response(400, json={"error": {"message": "beyond the context"}})
    with pytest.raises(InvalidSettings, match="beyond the context"):
        a_runner(event_log, lambda _: refusing).run(ITEMS, 7, threading.Event())


def test_to_be_stopped_while_the_engine_loads_is_no_verdict(event_log: LocalLog) -> None:
    stop = threading.Event()

    def absent_then_stop(request: httpx.Request) -> httpx.Response:
        del request
        stop.set()
        return ABSENT

    with pytest.raises(Unavailable):
        a_runner(event_log, absent_then_stop).run(ITEMS, 7, stop)


def test_an_engine_that_died_after_it_said_absent_is_no_verdict(event_log: LocalLog) -> None:
    said: list[str] = []

    def absent_then_gone(request: httpx.Request) -> httpx.Response:
        if len(said) < len(ITEMS.items):
            said.append("absent")
            return ABSENT
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(Unavailable, match="refused"):
        a_runner(event_log, absent_then_gone, patience=0.7).run(ITEMS, 7, threading.Event())


def test_answers_without_scores_are_no_verdict(event_log: LocalLog) -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        del request
        return httpx.Response(200, json={"id": new_completion_id()})

    with pytest.raises(Unavailable, match="3 of 3 sentinels were not scored"):
        a_runner(event_log, silent, patience=0.1).run(ITEMS, 7, threading.Event())


def test_without_sentinels_a_version_must_be_one_that_the_engine_took(event_log: LocalLog) -> None:
    none = SentinelFile((), "none")
    held = httpx.Response(200, json={"id": "p@v7"})
    assert a_runner(event_log, lambda _: held).run(none, 7, threading.Event()) == (7, (), True)
    with pytest.raises(VersionNotResident, match="did not take v7"):
        a_runner(event_log, lambda _: ABSENT, patience=0.1).run(none, 7, threading.Event())
