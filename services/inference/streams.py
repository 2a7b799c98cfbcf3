"""Answers as server-sent events, and clients that leave.

In: additions to each choice. Out: events; the finish reasons and the last event only after the generations are durable. Waits for: the
next token, then the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from contracts.errors import MillraceError
from services.http import wait_for_disconnect
from services.inference.answer import Delta, merged
from services.inference.completion import Completion
from services.inference.replies import Replies


class Events(NamedTuple):
    """Server-sent events that are sent together."""

    content: bytes
    last: bool = False
    whole: bool = False
    """The answer has ended well: it is durable, and these are its last events."""


class ClientPresence:
    """Notices that a client leaves. One per request, since it reads what the client sends.

    As a context manager it cancels the current task when the client leaves, and suppresses that cancellation at its end.
    """

    def __init__(self, client: Request) -> None:
        self._leaving = asyncio.create_task(wait_for_disconnect(client))
        self._waiting: asyncio.Task[Any] | None = None
        self._cancelled = False

    def end(self) -> None:
        """Stop watching."""
        self._leaving.cancel()

    def __enter__(self) -> None:
        self._waiting = asyncio.current_task()
        self._leaving.add_done_callback(self._cancel)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._leaving.remove_done_callback(self._cancel)
        waiting, self._waiting = self._waiting, None
        if not self._cancelled or waiting is None:
            return False
        self._cancelled = False
        return waiting.uncancel() == 0 and kind is asyncio.CancelledError

    def _cancel(self, _leaving: object) -> None:
        if self._waiting is not None:
            self._cancelled = True
            self._waiting.cancel()


class CompletionStream(Response):
    """A streamed answer. If its completion is not recorded by the end, it is abandoned. `is_whole`: it has ended well."""

    is_whole = False
    media_type = "text/event-stream"

    def __init__(
        self, completion: Completion, events: AsyncIterator[Events], headers: dict[str, str], presence: ClientPresence
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", **headers})
        del self.headers["content-length"]  # not known yet
        self._completion = completion
        self._events = events
        self._presence = presence

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the answer. Starlette's own stream needs a task group for this, which costs more per answer."""
        try:
            with self._presence:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for events in self._events:
                    self.is_whole = events.whole
                    await send({"type": "http.response.body", "body": events.content, "more_body": not events.last})
        finally:
            self._presence.end()
            self._completion.abandon()


async def completion_events(
    completion: Completion, first: list[Delta], deltas: AsyncIterator[list[Delta]], replies: Replies
) -> AsyncIterator[Events]:
    """The events of one answer; tokens that arrive together are one chunk. A failure after the first token is an event too, because the status line has been sent."""
    new: list[Delta] | None = first
    try:
        while new is not None:
            chunks = [chunk for delta in merged(new) for chunk in replies.chunks(delta)]
            if chunks:
                yield Events(b"".join(map(replies.encode, chunks)))
            new = await anext(deltas, None)
    except MillraceError as error:
        yield Events(replies.encode(replies.failure(error)), last=True)
        return
    logged = await completion.record()
    await replies.keep()
    closing = replies.closing()
    if not logged:
        closing[-1]["millrace"] = {"logged": False}
    yield Events(b"".join(map(replies.encode, closing)) + replies.end, last=True, whole=True)
