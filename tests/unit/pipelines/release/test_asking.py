"""The asker against a made-up endpoint: how sentinels are put, and that trouble on the way says nothing about a version."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from contracts.engines import EngineReplica, LoadProblem
from contracts.errors import InvalidSettings, Unavailable, VersionNotResident
from contracts.gating import Sentinel, SentinelFile
from engines.fitting import fitting
from pipelines.release.asking import LATE, REFUSED, BadVersion, NoLongerAssigned, SentinelAnswer, SentinelClient
from tests.each_case import each_case

SET = SentinelFile(
    tuple(
        Sentinel(task, [{"role": "user", "content": str(n)}], {"reference": str(n)}, 100 + n, f"s.jsonl:{n + 1}")
        for n, task in enumerate(["math", "math", "code"])
    ),
    "h",
    {},
)
NONE = SentinelFile((), "none", {})
ABSENT = httpx.Response(404, json={"error": {"code": "version_not_resident"}})
Answering = Callable[[httpx.Request], httpx.Response]
Engines = Callable[[], Sequence[EngineReplica]]
DRAWS = dict.fromkeys(SET.tasks, 0)


def no_engines() -> list[EngineReplica]:
    return []


def an_asker(answer: Answering, patience: float = 5.0, engines: Engines = no_engines) -> SentinelClient:
    client = httpx.Client(base_url="http://web", transport=httpx.MockTransport(answer))
    return SentinelClient(
        client,
        policy="p",
        concurrency=2,
        patience_seconds=patience,
        engines=engines,
    )


def completion(text: str, log_prob: float | None = -0.5, finish_reason: str = "stop") -> httpx.Response:
    choice = {
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
        "logprobs": {"content": [{"token": "x", "logprob": -0.1}, {"token": "y", "logprob": log_prob}]},
    }
    return httpx.Response(200, json={"id": "chatcmpl-1", "choices": [choice]})


def echoing(asked: list[dict[str, Any]]) -> Answering:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body)
        return completion(f"answer to {body['messages'][0]['content']}")

    return answer


def test_each_sentinel_is_asked_of_the_pinned_version_as_its_task_serves_its_users() -> None:
    asked: list[dict[str, Any]] = []
    found = an_asker(echoing(asked)).ask(SET, 7, threading.Event(), DRAWS)
    assert found == tuple(SentinelAnswer(f"answer to {n}", "stop", finite=True) for n in range(3))
    assert {body["model"] for body in asked} == {"p@v7"}
    seeds = [item.seed_of(0) for item in SET.items]
    assert [body["metadata"] for body in sorted(asked, key=lambda body: seeds.index(body["seed"]))] == [
        {"task": "math"},
        {"task": "math"},
        {"task": "code"},
    ]
    assert not {"temperature", "top_p", "max_tokens"} & {key for body in asked for key in body}, "the task's own hold"
    assert len(set(seeds)) == len(seeds)


def test_a_draw_has_its_own_seeds_and_always_the_same() -> None:
    asked: list[dict[str, Any]] = []
    for draw in (3, 5, 5):
        an_asker(echoing(asked)).ask(SET, 7, threading.Event(), dict.fromkeys(SET.tasks, draw))
    seeds = [sorted(body["seed"] for body in asked[start : start + 3]) for start in (0, 3, 6)]
    assert seeds[1] == seeds[2]
    assert not set(seeds[0]) & set(seeds[1])


@pytest.mark.parametrize("log_prob", [None, "-Infinity"])
def test_a_log_prob_that_is_not_finite_is_seen(log_prob: float | None) -> None:
    found = an_asker(lambda _: completion("x", log_prob)).ask(SET, 7, threading.Event(), DRAWS)
    assert not any(answer.finite for answer in found)


def test_a_version_that_the_engine_does_not_take_in_time_is_no_verdict() -> None:
    with pytest.raises(VersionNotResident, match="did not take v7"):
        an_asker(lambda _: ABSENT, patience=0.1).ask(SET, 7, threading.Event(), DRAWS)


def row_of(
    code: str, *, version: int = 7, attempts: int = 3, name: str = "eu-1", held: int | None = None
) -> EngineReplica:
    problem = LoadProblem(version=version, code=code, message="the payload has another hash", attempts=attempts)
    return EngineReplica(
        name, "p", "http://engine", "millrace", "eu", "serving", {"live": 6, "candidate": held}, frozenset(), "i", "e", "float32",
        time.time(), problems={"candidate": problem},
    )  # fmt: skip


def test_a_version_whose_bytes_a_replica_refuses_is_refused_by_name() -> None:
    rows = [row_of("unavailable", name="eu-0"), row_of("payload_hash")]
    with pytest.raises(BadVersion, match="the engine eu-1 refuses v7: payload_hash: the payload has another hash"):
        an_asker(lambda _: ABSENT, engines=lambda: rows).ask(SET, 7, threading.Event(), DRAWS)
    with pytest.raises(BadVersion):
        an_asker(lambda _: ABSENT, engines=lambda: [row_of("target_root")]).ask(NONE, 7, threading.Event(), {})


@each_case(
    "rows",
    [
        [row_of("unavailable")],
        [row_of("unsigned")],
        [row_of("payload_hash", version=6)],
        [row_of("payload_hash", attempts=1)],
        [row_of("payload_hash")._replace(seen_at=0.0)],
        [row_of("payload_hash"), row_of("payload_hash", name="us-1", held=7)],
        [fitting(row_of("wrong_shape")._replace(base="b"), "run", "a")],
        [fitting(row_of("wrong_run")._replace(run="other"), "run", "a")],
    ],
)  # fmt: skip
def test_what_may_be_our_own_fault_is_never_held_against_a_version(rows: list[EngineReplica]) -> None:
    with pytest.raises(VersionNotResident):
        an_asker(lambda _: ABSENT, patience=0.1, engines=lambda: rows).ask(SET, 7, threading.Event(), DRAWS)


def test_rows_that_cannot_be_read_are_never_held_against_a_version() -> None:
    def away() -> list[EngineReplica]:
        raise Unavailable("no database")

    with pytest.raises(VersionNotResident):
        an_asker(lambda _: ABSENT, patience=0.1, engines=away).ask(SET, 7, threading.Event(), DRAWS)


def test_a_sentinel_that_the_endpoint_refuses_is_named_by_file_and_line() -> None:
    refusing = httpx.Response(400, json={"error": {"message": "beyond the context"}})
    with pytest.raises(InvalidSettings, match=r"s\.jsonl:\d: .*beyond the context"):
        an_asker(lambda _: refusing).ask(SET, 7, threading.Event(), DRAWS)


def test_an_answer_that_is_no_completion_is_no_verdict() -> None:
    with pytest.raises(Unavailable, match="no completion"):
        an_asker(lambda _: httpx.Response(200, json={"choices": []})).ask(SET, 7, threading.Event(), DRAWS)


def test_to_be_stopped_while_the_engine_loads_is_no_verdict() -> None:
    stop = threading.Event()

    def absent_then_stop(request: httpx.Request) -> httpx.Response:
        del request
        stop.set()
        return ABSENT

    with pytest.raises(Unavailable, match="stopped"):
        an_asker(absent_then_stop).ask(SET, 7, stop, DRAWS)


def test_an_engine_that_is_away_is_no_verdict() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(Unavailable, match="did not answer its sentinels"):
        an_asker(gone, patience=0.1).ask(SET, 7, threading.Event(), DRAWS)


@pytest.mark.parametrize(
    "error", [httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("closed"), httpx.ReadError("reset")]
)
def test_a_sentinel_that_was_sent_and_not_answered_is_not_asked_again(error: httpx.TransportError) -> None:
    asked: list[str] = []

    def slow(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["messages"][0]["content"])
        raise error

    with pytest.raises(Unavailable, match=f"did not answer a sentinel: {type(error).__name__}"):
        an_asker(slow).ask(SET, 7, threading.Event(), DRAWS)
    assert len(asked) == len(set(asked))


def test_an_engine_that_fell_silent_is_not_asked_again_either() -> None:
    asked: list[str] = []

    def silent(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["messages"][0]["content"])
        return httpx.Response(504, headers={"x-should-retry": "false"}, json={"error": {"code": "engine_silent"}})

    with pytest.raises(Unavailable, match="engine_silent"):
        an_asker(silent).ask(SET, 7, threading.Event(), DRAWS)
    assert len(asked) == len(set(asked))


def test_all_sentinels_wait_as_long_as_an_engine_that_has_too_much_to_do_says() -> None:
    asked: list[float] = []
    full = httpx.Response(429, headers={"retry-after": "1"}, json={"error": {"code": "engine_overloaded"}})

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(time.monotonic())
        return full if len(asked) == 1 else completion(str(request.url))

    assert len(an_asker(answer).ask(SET, 7, threading.Event(), DRAWS)) == len(SET.items)
    later = sorted(asked)[2:]  # the second may have been on its way beside the first
    assert len(later) >= len(SET.items) - 1
    assert min(later) - asked[0] >= 1


def test_an_engine_that_never_has_time_is_no_verdict_and_is_not_pressed() -> None:
    num_asked = 0

    def full(request: httpx.Request) -> httpx.Response:
        nonlocal num_asked
        del request
        num_asked += 1
        return httpx.Response(429, headers={"retry-after": "60"}, json={"error": {"code": "engine_overloaded"}})

    with pytest.raises(Unavailable, match="engine_overloaded"):
        an_asker(full, patience=0.3).ask(SET, 7, threading.Event(), DRAWS)
    assert num_asked <= len(SET.items)


def test_without_sentinels_a_version_must_be_one_that_the_engine_took() -> None:
    held = httpx.Response(200, json={"id": "p@v7"})
    assert an_asker(lambda _: held).ask(NONE, 7, threading.Event(), {}) == ()
    with pytest.raises(VersionNotResident, match="did not take v7"):
        an_asker(lambda _: ABSENT, patience=0.1).ask(NONE, 7, threading.Event(), {})


def test_more_fields_of_a_question_are_sent_and_calls_are_part_of_the_answer() -> None:
    tool = {"type": "function", "function": {"name": "book"}}
    options = {"store": False, "tools": [tool], "tool_choice": "auto"}
    question = Sentinel("math", [{"role": "user", "content": "x"}], {}, 1, options=options)
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": '{"party": 2}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    [said] = an_asker(answer).ask(SentinelFile((question,), "", {}), 7, threading.Event(), {"math": 0})
    assert said.text == '<tool_call>{"name": "book", "arguments": {"party": 2}}</tool_call>'
    assert options.items() <= asked[0].items()


@pytest.mark.parametrize(("status", "is_skipped"), [(400, True), (422, True), (401, False), (403, False)])
def test_a_question_that_is_refused_can_be_skipped_but_a_wrong_key_is_told(status: int, *, is_skipped: bool) -> None:
    asker = an_asker(lambda _: httpx.Response(status, text="too long"))
    asker.skips = True
    if is_skipped:
        assert {answer.finish_reason for answer in asker.ask(SET, 7, threading.Event(), DRAWS)} == {REFUSED}
    else:
        with pytest.raises(InvalidSettings):
            asker.ask(SET, 7, threading.Event(), DRAWS)


def test_an_answer_that_comes_too_late_can_be_skipped() -> None:
    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("60 s", request=request)

    asker = an_asker(hang)
    with pytest.raises(Unavailable):
        asker.ask(SET, 7, threading.Event(), DRAWS)
    asker.skips = True
    assert {answer.finish_reason for answer in asker.ask(SET, 7, threading.Event(), DRAWS)} == {LATE}


def test_what_engines_say_about_another_slot_says_nothing() -> None:
    for slot, error in (("candidate", BadVersion), ("canary", VersionNotResident)):
        asker = an_asker(lambda _: ABSENT, patience=0.5, engines=lambda: [row_of("payload_hash")])
        asker.slot = slot
        with pytest.raises(error):
            asker.ask(SET, 7, threading.Event(), DRAWS)


@pytest.mark.parametrize("sentinels", [SET, NONE])
def test_a_version_that_was_taken_from_its_arm_is_not_waited_for(sentinels: SentinelFile) -> None:
    """After a rollback the next candidate would wait for the whole patience."""
    looks = iter([True, True, False])
    asker = an_asker(lambda _: ABSENT, patience=60.0)
    asker.is_assigned = lambda version: next(looks, False) and version == 7
    with pytest.raises(NoLongerAssigned, match="v7 was taken from its arm"):
        asker.ask(sentinels, 7, threading.Event(), DRAWS if sentinels.items else {})
