"""Repeated requests, and keys that exceed their limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Message

from runtime.database import Database
from runtime.replicas import ReplicaLinks, RequestClaim
from runtime.replicas.in_process import LocalIdempotencyStore, local_links
from services.inference.idempotency import MAX_ANSWER_BYTES, REPLAYED, IdempotentRequests
from tests.unit.services.inference.conftest import Inference, a_service, text_of
from tests.unit.services.inference.world import FakeEngine, Stage, make_base
from tests.unit.services.serving import make_home, make_key, wait_until

TEXT = "Tisch für 4: {ok}"
KEY = {"Idempotency-Key": "order-17"}


def ask(inference: Inference, headers: dict[str, str] = KEY, **changes: Any) -> Any:
    return inference.client.chat.completions.with_raw_response.create(
        model="demo",
        messages=changes.pop("messages", [{"role": "user", "content": "table for 4"}]),
        extra_headers=headers,
        **changes,
    )


@contextmanager
def held(inference: Inference) -> Iterator[list[Any]]:
    """A first request that runs until the block ends; its raw responses."""
    answers: list[Any] = []
    inference.engine.hold_after = 2
    first = threading.Thread(target=lambda: answers.append(ask(inference)))
    first.start()
    wait_until(lambda: inference.engine.requests)
    yield answers
    inference.engine.go.set()
    first.join()


def test_a_repeat_gets_the_first_answer_and_is_neither_run_nor_logged(inference: Inference) -> None:
    first, second = ask(inference), ask(inference)
    assert first.parse() == second.parse()
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == first.parse().id
    assert (first.headers.get(REPLAYED), second.headers.get(REPLAYED)) == (None, "true")
    assert len(inference.engine.requests) == len(inference.logged()) == 1


def test_a_repeated_stream_is_the_same_stream(inference: Inference) -> None:
    chunks = [list(ask(inference, stream=True).parse()) for _ in range(2)]
    assert chunks[0] == chunks[1]
    assert text_of(chunks[1]) == TEXT
    assert len(inference.engine.requests) == len(inference.logged()) == 1


def test_without_a_key_nothing_is_a_repeat(inference: Inference) -> None:
    assert ask(inference, {}).parse().id != ask(inference, {}).parse().id


def test_another_body_under_the_key_is_a_conflict_that_is_not_tried_again(inference: Inference) -> None:
    ask(inference)
    with pytest.raises(openai.ConflictError, match="another body") as error:
        ask(inference, messages=[{"role": "user", "content": "for 5"}])
    assert error.value.code == "conflict"
    assert error.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/messages", {}),
        ("/v1/chat/completions", {"x-millrace-join-key": "other"}),
        ("/v1/chat/completions", {"x-millrace-task": "booking"}),
        ("/v1/chat/completions", {"x-millrace-purpose": "rollout"}),
    ],
)
def test_path_labels_and_purpose_tell_one_request_from_another(
    inference: Inference, path: str, headers: dict[str, str]
) -> None:
    """The body is the same, byte by byte, and all dialects take it."""
    key = inference.operator.api_key if "x-millrace-purpose" in headers else inference.key
    body = {"model": "demo", "max_tokens": 30, "messages": [{"role": "user", "content": "table for 4"}]}

    def send(path: str, **more: str) -> httpx.Response:
        sent = httpx.Headers({"authorization": f"Bearer {key}", "x-millrace-join-key": "mine", **KEY})
        sent.update(more)
        return httpx.post(f"{inference.url}{path}", json=body, headers=sent, timeout=10)

    assert send("/v1/chat/completions").status_code == 200
    refused = send(path, **headers)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert "another body, path, label or purpose" in refused.text
    again = send("/v1/chat/completions", **{"x-millrace-purpose": "user"})
    assert again.headers[REPLAYED] == "true"
    assert len(inference.logged()) == 1
    counted = {"idempotency-key": "", "x-stainless-retry-count": "0"}
    tries = [send(where, **more, **counted) for where, more in (("/v1/chat/completions", {}), (path, headers))]
    assert [answer.status_code for answer in tries] == [200, 200]
    attempts = [record.attempt for record in inference.logged()[1:]]
    assert len({attempt and attempt.request for attempt in attempts}) == 2


def test_what_a_session_asked_is_no_repeat_of_what_an_app_asked_in_its_name(inference: Inference) -> None:
    headers = {"authorization": f"Bearer {inference.key}"}
    made = httpx.post(f"{inference.url}/v1/sessions", json={}, headers=headers, timeout=10).json()
    ask(inference, KEY | {"x-millrace-session": made["id"]})
    with openai.OpenAI(base_url=made["base_url"], api_key=made["key"], max_retries=0) as agent:
        for replayed in (None, "true"):
            answer = agent.chat.completions.with_raw_response.create(
                model="demo", messages=[{"role": "user", "content": "table for 4"}], extra_headers=KEY
            )
            assert answer.headers.get(REPLAYED) == replayed


@pytest.mark.usefixtures("alone")
def test_another_tenant_has_its_own_keys(inference: Inference, database: Database) -> None:
    ask(inference)
    inference.client = inference.client.with_options(api_key=make_key(database, tenant="other"))
    assert REPLAYED not in ask(inference).headers


@pytest.mark.usefixtures("alone")
def test_a_repeat_of_a_running_request_waits_for_its_answer(inference: Inference) -> None:
    answers: list[Any] = []
    with held(inference) as first:
        second = threading.Thread(target=lambda: answers.append(ask(inference)))
        second.start()
        second.join(0.1)
        assert answers == []
        inference.engine.go.set()
        second.join()
    assert answers[0].headers[REPLAYED] == "true"
    assert answers[0].parse() == first[0].parse()
    assert len(inference.engine.requests) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_failed_request_runs_again(inference: Inference) -> None:
    inference.engine.serving = False
    with pytest.raises(openai.InternalServerError):
        ask(inference)
    inference.engine.serving = True
    assert REPLAYED not in ask(inference).headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.usefixtures("alone")
def test_a_client_that_left_may_ask_again(inference: Inference, stream: bool) -> None:
    inference.engine.hold_after = 2
    patient, inference.client = inference.client, inference.client.with_options(timeout=0.5)
    with pytest.raises((openai.APITimeoutError, httpx.ReadTimeout)):
        list(ask(inference, stream=stream).parse())
    inference.client = patient
    inference.engine.go.set()
    again = ask(inference, stream=stream)
    assert REPLAYED not in again.headers
    assert text_of(again.parse()) == TEXT


@pytest.mark.parametrize("changes", [{"store": False}, {"metadata": {"task": "private"}}])
def test_nothing_is_kept_without_consent(inference: Inference, changes: dict[str, Any]) -> None:
    ids = {ask(inference, **changes).parse().id for _ in range(2)}
    assert len(ids) == 2
    assert inference.logged() == []


@pytest.fixture
def limited(tmp_path: Path, database: Database, stage: Stage) -> Iterator[Callable[..., Inference]]:
    """A service whose keys may send so many requests a minute, and have sent some."""
    make_base(tmp_path / "base")
    with ExitStack() as stack:

        def start(per_minute: int, spent: int = 0) -> Inference:
            links = local_links()
            settings = make_home(tmp_path, stage.url).model_copy(update={"requests_per_minute": per_minute})
            world = stack.enter_context(a_service(settings, database, stage, FakeEngine(TEXT), links=links))
            if spent:
                asyncio.run(_spend(links, f"requests:{world.key.split('-')[2]}", per_minute, spent))
            return world

        yield start


async def _spend(links: ReplicaLinks, key: str, limit: int, num: int) -> None:
    await links.limiter.allow(key, limit, num)


def test_too_many_requests_are_refused_as_openai_does(limited: Callable[..., Inference]) -> None:
    world = limited(2)
    first = ask(world, {})
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    ask(world, {})
    with pytest.raises(openai.RateLimitError, match="may send 2 requests a minute") as error:
        ask(world, {})
    headers = error.value.response.headers
    assert error.value.code == "rate_limit_exceeded"
    assert 0 < int(headers["retry-after"]) <= 30
    assert 0 < int(headers["retry-after-ms"]) <= 30_000
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert len(world.logged()) == 2


def test_the_sdk_waits_as_long_as_it_is_told(limited: Callable[..., Inference]) -> None:
    world = limited(600, spent=610)  # owes a second more than it may, longer than the SDK would wait by itself
    patient = world.client.with_options(max_retries=1)
    answer = patient.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}])
    assert answer.choices[0].message.content == TEXT


def test_operators_are_not_limited(limited: Callable[..., Inference]) -> None:
    world = limited(1)
    for _ in range(3):
        answer = world.ask(world.operator)
        assert answer.choices[0].message.content == TEXT


SCOPE = {"type": "http", "asgi": {"spec_version": "2.4"}}


async def nothing_comes() -> Message:
    raise NotImplementedError


async def send_out(response: Response) -> bytes:
    parts = []

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    await response(SCOPE, nothing_comes, send)
    return b"".join(parts)


class Streamed(StreamingResponse):
    """Says how it ended, as `CompletionStream` does."""

    is_whole = False


def streamed(*parts: bytes, well: bool) -> Response:
    async def body() -> AsyncIterator[bytes]:
        for place, part in enumerate(parts, start=1):
            response.is_whole = well and place == len(parts)
            yield part

    response = Streamed(body(), media_type="text/event-stream")
    return response


def plain(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


async def is_kept(response: Response) -> bool:
    repeats = IdempotentRequests(LocalIdempotencyStore())

    async def run() -> Response:
        return response

    async def run_again() -> Response:
        return plain(b"again")

    sent = await send_out(await repeats.once("key", "tenant", b"body", run))
    await repeats.close()
    second = await repeats.once("key", "tenant", b"body", run_again)
    repeated = await send_out(second)
    await repeats.close()
    assert repeated in {sent, b"again"}
    assert (repeated == sent) == (second.headers.get(REPLAYED) == "true")
    return repeated == sent


async def test_whole_answers_are_kept() -> None:
    assert await is_kept(plain(b"{}"))
    assert await is_kept(streamed(b"data: {}\n\n", b"data: [DONE]\n\n", well=True))
    assert await is_kept(plain(bytes(MAX_ANSWER_BYTES)))


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_a_failure_is_not_kept(status: int) -> None:
    assert not await is_kept(plain(b"{}", status))


async def test_a_stream_that_ended_in_an_error_is_not_kept() -> None:
    assert not await is_kept(streamed(b"data: {}\n\n", b'data: {"error":{}}\n\n', well=False))


async def test_an_answer_that_is_too_large_is_not_kept() -> None:
    assert not await is_kept(plain(bytes(MAX_ANSWER_BYTES + 1)))
    assert not await is_kept(streamed(bytes(MAX_ANSWER_BYTES), b"x", well=True))


class Watched(LocalIdempotencyStore):
    """Says when a lease was renewed for the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.num_renewed = 0
        self.twice = asyncio.Event()

    async def renew(self, key: str, turn: RequestClaim) -> None:
        await super().renew(key, turn)
        self.num_renewed += 1
        if self.num_renewed == 2:
            self.twice.set()


async def test_a_key_is_held_as_long_as_its_request_runs_and_no_longer() -> None:
    window = Watched()
    repeats = IdempotentRequests(window, lease_seconds=0.01)

    async def run() -> Response:
        async with asyncio.timeout(60):
            await window.twice.wait()
        return plain(b"{}")

    await send_out(await repeats.once("key", "tenant", b"body", run))
    await repeats.close()
    num_renewed = window.num_renewed
    await asyncio.sleep(0.02)
    assert window.num_renewed == num_renewed
