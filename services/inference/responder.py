"""What all routes that answer a conversation share, whatever dialect it came in.

In: a request in OpenAI's form, and what makes replies in the caller's shape. Out: the response. Planning, limits, repeats, attempts and
purposes are the same for every dialect.

With a provider in front, a request is planned first: if its arm is the provider, it goes there as it was sent, under the plan's id and draw.
What the own versions cannot take goes there without a draw, whatever its arm would have been: so both arms of a comparison get the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from fastapi import Request, Response

from contracts.assignments import PROVIDER, provider_share
from contracts.errors import InvalidRequest
from contracts.keys import Caller
from services.inference.arrival import PURPOSE_HEADER, AnswerPath, Arrival, attempt_of, identity_of, with_labels
from services.inference.endpoint import Endpoint
from services.inference.idempotency import IdempotentRequests
from services.inference.plan import Planner, RequestPlan
from services.inference.replies import ChatReplies, MakeReplies
from services.inference.requests import ChatRequest
from services.limits import Limit
from services.provider import Spoken


class Asked(NamedTuple):
    """What was read from a body: mostly one request; one for each of several prompts, which have all else in common."""

    requests: Sequence[ChatRequest]
    replies: MakeReplies = ChatReplies


class InFront(Protocol):
    """A provider that stands in front of the policy: `provider/routes.py`."""

    def renamed(self, request: ChatRequest) -> ChatRequest:
        """The request, for the policy also if it has the provider's name of the model."""
        ...

    async def path_of(self, sent: Arrival, plan: RequestPlan | None = None) -> AnswerPath:
        """The path to the provider, under id, terms and draw of the plan. Raises InvalidRequest."""
        ...


@dataclass(frozen=True, kw_only=True)
class Responder:
    """See the module. `front`: where a provider stands in front of the policy."""

    planner: Planner
    endpoint: Endpoint
    repeats: IdempotentRequests
    limit: Limit
    front: InFront | None = None

    async def respond(
        self,
        client: Request,
        caller: Caller,
        read: Callable[[bytes], Awaitable[Asked]],
        spoken: Spoken | None = None,
    ) -> Response:
        """Answer a request; it counts against the caller's limit before its body is read. `spoken`: its dialect, if providers may speak it."""
        headers, body = await self.limit.check(caller), await client.body()
        scope, asked = identity_of(client, caller, body)
        path = await self._path_of(Arrival(client, caller, body, spoken, attempt_of(client.headers, asked)), read)
        # An answer that may not be logged is not kept for repeats either.
        key = client.headers.get("idempotency-key") if path.terms.logged else None
        response = await self.repeats.once(key, scope, asked, path.begin)
        response.headers.update(headers)
        return response

    async def _path_of(self, sent: Arrival, read: Callable[[bytes], Awaitable[Asked]]) -> AnswerPath:
        front = self.front
        try:
            asked = await read(sent.body)
            plans = [await self._plan(request, sent) for request in asked.requests]
        except InvalidRequest:
            if front is None or sent.spoken is None or not provider_share(await self.planner.arms.assignments.held()):
                raise
            path = await front.path_of(sent)
            if not path.terms.may_draw:
                raise
            return path
        plan = plans[0]
        if front is not None and plan.drawn.arm.name == PROVIDER:
            return await front.path_of(sent, plan)
        answer = self.endpoint.stream if plan.request.stream else self.endpoint.answer
        return AnswerPath(plan.terms, partial(answer, plans, sent.client, asked.replies))

    async def _plan(self, request: ChatRequest, sent: Arrival) -> RequestPlan:
        request = with_labels(request, sent.client.headers, sent.caller)
        request = request if self.front is None else self.front.renamed(request)
        return await self.planner.plan(request, sent.caller, sent.client.headers.get(PURPOSE_HEADER), sent.attempt)
