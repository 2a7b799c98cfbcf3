"""What all routes that answer a conversation share, whatever dialect it came in.

In: a request in OpenAI's form, and what makes replies in the caller's shape. Out: the response. Planning, limits, repeats, attempts and
purposes are the same for every dialect.

With a provider in front, a request is planned first: if its arm is the provider, it goes there as it was sent, under the plan's id and draw.
What the own versions cannot take goes there without a draw, whatever its arm would have been: so both arms of a comparison get the same.
What the provider does not speak is answered by the live version, and not compared either. Nor is what goes on from a response: that of a
provider goes on there, also when its users went over; that of an own version goes with its conversation to whom it was drawn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from fastapi import Request, Response

from contracts.assignments import PROVIDER, provider_share
from contracts.errors import InvalidRequest, NotFound
from contracts.keys import Caller
from services.inference.arrival import PURPOSE_HEADER, Admission, AnswerPath, Arrival, with_labels
from services.inference.endpoint import Endpoint
from services.inference.plan import Planner, RequestPlan
from services.inference.replies import ChatReplies, MakeReplies
from services.inference.requests import ChatRequest
from services.provider import Spoken


class Asked(NamedTuple):
    """What was read from a body: mostly one request; one for each of several prompts, which have all else in common."""

    requests: Sequence[ChatRequest]
    replies: MakeReplies = ChatReplies
    conversation: Sequence[dict[str, Any]] | None = None
    """The whole of it as items, if the body only refers to its beginning."""


class InFront(Protocol):
    """A provider that stands in front of the policy: `provider/routes.py`."""

    def renamed(self, request: ChatRequest) -> ChatRequest:
        """The request, for the policy also if it has the provider's name of the model."""
        ...

    def passes(self, spoken: Spoken | None) -> bool:
        """Whether it speaks this dialect."""
        ...

    async def path_of(
        self,
        sent: Arrival,
        plan: RequestPlan | None = None,
        conversation: Sequence[dict[str, Any]] | None = None,
    ) -> AnswerPath:
        """The path to the provider, under id, terms and draw of the plan. Raises InvalidRequest."""
        ...

    async def goes_on(self, sent: Arrival) -> bool:
        """Whether a request goes on from a response of the provider's. Raises InvalidRequest."""
        ...


@dataclass(frozen=True, kw_only=True)
class Responder:
    """See the module. `front`: where a provider stands in front of the policy."""

    planner: Planner
    endpoint: Endpoint
    admission: Admission
    front: InFront | None = None

    async def respond(
        self,
        client: Request,
        caller: Caller,
        read: Callable[[bytes], Awaitable[Asked]],
        spoken: Spoken | None = None,
    ) -> Response:
        """Answer a request. `read`: reads its body; `spoken`: its dialect, if providers may speak it."""
        return await self.admission.respond(client, caller, spoken, partial(self._path_of, read))

    async def _path_of(self, read: Callable[[bytes], Awaitable[Asked]], sent: Arrival) -> AnswerPath:
        try:
            asked = await read(sent.body)
            plans = [await self._plan(request, sent) for request in asked.requests]
        except InvalidRequest as error:
            return await self._elsewhere(sent, error)
        if (front := self.front) is not None:
            passes, is_drawn = front.passes(sent.spoken), plans[0].drawn.arm.name == PROVIDER
            if (asked.conversation is not None or not passes) and (is_drawn or await self._provider_share()):
                plans = [plan.uncompared(passes=passes) for plan in plans]
            if is_drawn and passes:
                return await front.path_of(sent, plans[0], asked.conversation)
        return AnswerPath(plans[0].terms, partial(self._answer, plans, sent, asked.replies))

    async def _answer(self, plans: Sequence[RequestPlan], sent: Arrival, replies: MakeReplies) -> Response:
        answer = self.endpoint.stream if plans[0].request.stream else self.endpoint.answer
        try:
            return await answer(plans, sent.client, replies)
        except InvalidRequest as error:  # what an engine cannot take either
            return await (await self._elsewhere(sent, error)).begin()

    async def _elsewhere(self, sent: Arrival, error: InvalidRequest) -> AnswerPath:
        """The path to the provider, for a request that the own versions cannot take. Raises `error`: it has no users, or cannot be asked for this."""
        front = self.front
        if front is None or not front.passes(sent.spoken):
            raise error
        has_users = await self._provider_share() > 0.0
        if not has_users and not (isinstance(error, NotFound) and await front.goes_on(sent)):
            raise error
        path = await front.path_of(sent)
        if not path.terms.may_draw:
            raise error
        return path

    async def _provider_share(self) -> float:
        return provider_share(await self.planner.arms.assignments.held())

    async def _plan(self, request: ChatRequest, sent: Arrival) -> RequestPlan:
        request = with_labels(request, sent.client.headers, sent.caller)
        request = request if self.front is None else self.front.renamed(request)
        return await self.planner.plan(request, sent.caller, sent.client.headers.get(PURPOSE_HEADER), sent.attempt)
