"""Which answers are stored for repeats, and how long a key is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Message

from runtime.replicas import RequestClaim
from runtime.replicas.in_process import LocalIdempotencyStore
from services.inference.idempotency import MAX_ANSWER_BYTES, REPLAYED, IdempotentRequests

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
