"""Answers planned requests, whole or streamed.

    responder.py ─▶ plan.py ─▶ RequestPlan ─▶ answer() or stream()
                                              │ starts
                                              ▼
         engine ──pieces──▶ Completion: one task per choice ──▶ _new (a list) ──▶ stream(): events for the client
           ▲                  │        └─▶ answer() waits for all choices
           │ cancels          │ generations, when all choices have ended
         ClientPresence       ▼
         (client left)      Recorder._waiting ──▶ one thread appends for all that wait ──▶ log, durable

In: plans. Out: bodies, or server-sent events: the finish reasons and the last event only after the generations are durable. Waits for:
the first token, so that a refusal of the engine still has its own status code; then the rest, and the log. The list has no bound, since
an answer has at most `max_tokens` deltas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send
from tokenizers import Tokenizer

from contracts.errors import MillraceError
from services.http import CLIENT_LEFT, reply, wait_for_disconnect
from services.inference.answer import Delta, merged
from services.inference.completion import Completion
from services.inference.engine.pool import EnginePool
from services.inference.plan import RequestPlan
from services.inference.recorder import Recorder
from services.inference.replies import ChatReplies, MakeReplies, Replies
from services.inference.sessions.budgets import SessionBudgets
from services.inference.sessions.turns import Turns

_MANY_LISTED = 1000
"""Tokens with their log-probs; a thread costs as much as a few hundred."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What all requests share; see the module."""

    tokenizer: Tokenizer
    engine: EnginePool
    recorder: Recorder
    turns: Turns
    budgets: SessionBudgets

    async def answer(
        self, plans: Sequence[RequestPlan], client: Request, replies: MakeReplies = ChatReplies
    ) -> Response:
        """The whole answer to one or more prompts, once it is durable."""
        completion, presence = await self._start(plans), ClientPresence(client)
        logged: bool | None = None
        try:
            with presence:
                logged = await completion.finish()
        finally:
            presence.end()
            completion.abandon()
        if logged is None:
            return Response(status_code=CLIENT_LEFT)
        made = replies(completion, self.tokenizer)
        body = await asyncio.to_thread(made.body) if _is_long(completion) else made.body()
        await made.keep()
        lost = {} if logged else {"x-millrace-logged": "false"}
        return reply(body, headers={"x-request-id": plans[0].completion_id, **lost})

    async def stream(
        self, plans: Sequence[RequestPlan], client: Request, replies: MakeReplies = ChatReplies
    ) -> Response:
        """The answer as it is made. The response begins with the first token."""
        completion, presence = await self._start(plans), ClientPresence(client)
        deltas = completion.deltas()
        response: Response | None = None
        try:
            with presence:
                first = await anext(deltas)
                events = _events(completion, first, deltas, replies(completion, self.tokenizer))
                response = CompletionStream(plans[0].completion_id, completion.abandon, events, presence)
            return response or Response(status_code=CLIENT_LEFT)
        finally:
            if response is None:
                presence.end()
                completion.abandon()

    async def _start(self, plans: Sequence[RequestPlan]) -> Completion:
        for plan in plans:
            if (refusal := plan.terms.requirement.refused_by(plan.drawn.version)) is not None:
                raise refusal
        left = await self.budgets.reserve(plans[0].budget)
        if left is not None:
            most = max(1, left // sum(plan.request.num_choices for plan in plans))
            plans = [plan.shortened(most) for plan in plans]
        return Completion(plans, self.engine, self.recorder, self.turns, self.budgets)


def _is_long(completion: Completion) -> bool:
    """Whether an answer lists so many tokens that it is put together on another thread."""
    request = completion.plan.request
    each = 1 + (request.top_logprobs or 0) if request.logprobs else int(bool(request.return_token_ids))
    return each * sum(len(choice.tokens) for choice in completion.choices) > _MANY_LISTED


class SentEvents(NamedTuple):
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
    """A streamed answer. At its end, however it came, `abandon` is called. `is_whole`: it has ended well."""

    is_whole = False
    media_type = "text/event-stream"

    def __init__(
        self,
        completion_id: str,
        abandon: Callable[[], None],
        events: AsyncIterator[SentEvents],
        presence: ClientPresence,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-request-id": completion_id})
        del self.headers["content-length"]  # not known yet
        self._abandon, self._events, self._presence = abandon, events, presence

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
            self._abandon()


async def _events(
    completion: Completion, first: list[Delta], deltas: AsyncIterator[list[Delta]], replies: Replies
) -> AsyncIterator[SentEvents]:
    """The events of one answer; tokens that arrive together are one chunk. A failure after the first token is an event too."""
    new: list[Delta] | None = first
    try:
        while new is not None:
            chunks = [chunk for delta in merged(new) for chunk in replies.chunks(delta)]
            if chunks:
                yield SentEvents(b"".join(map(replies.encode, chunks)))
            new = await anext(deltas, None)
    except MillraceError as error:
        yield SentEvents(replies.encode(replies.failure(error)), last=True)
        return
    logged = await completion.record()
    await replies.keep()
    closing = replies.closing()
    if not logged:
        closing[-1]["millrace"] = {"logged": False}
    yield SentEvents(b"".join(map(replies.encode, closing)) + replies.end, last=True, whole=True)
