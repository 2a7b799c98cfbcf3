"""Answers planned requests, whole or streamed.

    responder.py ─▶ plan.py ─▶ RequestPlan ─▶ answer() or stream()
                                              │ starts
                                              ▼
         engine ──pieces──▶ Completion: one task per choice ──▶ _new (a list) ──▶ stream(): events for the client
           ▲                  │        └─▶ answer() waits for all choices
           │ cancels          │ generations, when all choices have ended
         ClientPresence       ▼
         (client left)      Recorder._waiting ──▶ one thread appends for all that wait ──▶ log, durable

Who waits for whom: the tasks of a completion wait for the engine. `stream` waits for the list, which its completion fills;
the list has no bound, since an answer has at most `max_tokens` deltas. The end of a response (the body, or the last event) waits for
the recorder. The recorder waits only for the log.

In: plans. Out: bodies and events. Waits for: the first token, so that a refusal of the engine
still has its own status code; then the rest, and the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request, Response
from tokenizers import Tokenizer

from services.http import CLIENT_LEFT, reply
from services.inference.completion import Completion
from services.inference.engine.pool import EnginePool
from services.inference.plan import RequestPlan
from services.inference.recorder import Recorder
from services.inference.replies import ChatReplies, MakeReplies
from services.inference.sessions.budgets import SessionBudgets
from services.inference.sessions.turns import Turns
from services.inference.streams import ClientPresence, CompletionStream, completion_events

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
        return reply(body, headers=_headers(plans) | ({} if logged else {"x-millrace-logged": "false"}))

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
                made = replies(completion, self.tokenizer)
                events = completion_events(completion, first, deltas, made)
                response = CompletionStream(completion, events, _headers(plans), presence)
            return response or Response(status_code=CLIENT_LEFT)
        finally:
            if response is None:
                presence.end()
                completion.abandon()

    async def _start(self, plans: Sequence[RequestPlan]) -> Completion:
        for plan in plans:
            if (refusal := plan.requirement.refused_by(plan.assigned)) is not None:
                raise refusal
        left = await self.budgets.reserve(plans[0].budget)
        if left is not None:
            most = max(1, left // sum(plan.request.num_choices for plan in plans))
            plans = [plan.shortened(most) for plan in plans]
        return Completion(plans, self.engine, self.recorder, self.turns, budgets=self.budgets)


def _is_long(completion: Completion) -> bool:
    """Whether an answer lists so many tokens that it is put together on another thread."""
    request = completion.plan.request
    each = 1 + (request.top_logprobs or 0) if request.logprobs else int(bool(request.return_token_ids))
    return each * sum(len(choice.tokens) for choice in completion.choices) > _MANY_LISTED


def _headers(plans: Sequence[RequestPlan]) -> dict[str, str]:
    return {"x-request-id": plans[0].completion_id}
