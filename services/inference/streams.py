"""Answers as server-sent events, and clients that leave.

Flows in: what is added to each choice. Flows out: chunks; why a choice ended, and `[DONE]`, only once the generations are
durable. Waits for: the next token, then the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from tokenizers import Tokenizer

from contracts.errors import MillraceError
from services.inference import replies
from services.inference.answer import Delta
from services.inference.completion import Completion

ResultType = TypeVar("ResultType")


class CompletionStream(StreamingResponse):
    """A streamed answer. However it ends, a completion that was not recorded is abandoned."""

    def __init__(self, completion: Completion, events: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store", **headers})
        self._completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._completion.abandon()


async def completion_events(
    completion: Completion, first: Delta, deltas: AsyncIterator[Delta], tokenizer: Tokenizer
) -> AsyncIterator[bytes]:
    """The events of one answer. A failure after the first token is an event too: the status line is gone."""
    plan, opened = completion.plan, set[int]()
    delta: Delta | None = first
    try:
        while delta is not None:
            choice = completion.choices[delta.choice]
            if choice.index not in opened:
                opened.add(choice.index)
                yield replies.event(replies.opening_chunk(plan, choice))
            if delta.text or plan.logprobs:
                yield replies.event(replies.delta_chunk(plan, choice, delta, tokenizer))
            delta = await anext(deltas, None)
    except MillraceError as error:
        yield replies.event(error.as_openai())
        return
    logged = await completion.record()
    closing = [replies.closing_chunk(plan, choice) for choice in completion.choices]
    if plan.include_usage:
        closing.append(replies.usage_chunk(plan, completion.choices))
    if not logged:
        closing[-1]["millrace"] = {"logged": False}
    for chunk in closing:
        yield replies.event(chunk)
    yield replies.DONE


async def unless_client_leaves(client: Request, result: Awaitable[ResultType]) -> ResultType | None:
    """The result, or None if the client closes the connection first; then the result is cancelled."""
    wanted = asyncio.ensure_future(result)
    left = asyncio.create_task(_left(client))
    try:
        await asyncio.wait({wanted, left}, return_when=asyncio.FIRST_COMPLETED)
        return wanted.result() if wanted.done() else None
    finally:
        left.cancel()
        wanted.cancel()


async def _left(client: Request) -> None:
    while (await client.receive())["type"] != "http.disconnect":
        pass
