"""What all routes that answer a conversation share, whatever dialect it came in.

In: a request in OpenAI's form, and what makes replies in the caller's shape. Out: the response. Planning, limits, repeats, attempts and
purposes are the same for every dialect.

With a provider in front, a request is planned first: if its arm is the provider, it goes there as it was sent, under the plan's id and draw.
What the own versions cannot take goes there without a draw, whatever its arm would have been: so both arms of a comparison get the same.
What the provider does not speak is answered by the live version, and not compared either. Nor is what goes on from a response: that of a
provider goes on there, also when its users went over; that of an own version goes with its conversation to whom it was drawn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from fastapi import Request, Response

from contracts.assignments import PROVIDER, provider_share
from contracts.errors import InvalidRequest, NotFound
from contracts.keys import Caller
from contracts.records import Attempt
from services.http import SESSION_HEADER, authorization_of
from services.inference.bounds import check_metadata
from services.inference.endpoint import Endpoint
from services.inference.idempotency import IdempotentRequests
from services.inference.plan import Planner, RequestPlan
from services.inference.replies import ChatReplies, MakeReplies
from services.inference.requests import ChatRequest
from services.inference.terms import Terms
from services.limits import Limit
from services.provider import Spoken

if TYPE_CHECKING:
    from services.inference.provider.routes import Front

LABELS = {
    "x-millrace-task": "task",
    SESSION_HEADER: "session_id",
    "x-millrace-session-group": "session_group",
    "x-millrace-join-key": "join_key",
}
"""Headers that say what a key of the metadata says, for clients that cannot send metadata."""
PURPOSE_HEADER = "x-millrace-purpose"
RETRY_COUNT = "x-stainless-retry-count"
_MAX_DIGITS = 3
_as_json = msgspec.json.Encoder().encode


class Asked(NamedTuple):
    """What was read from a body: mostly one request; one for each of several prompts, which have all else in common."""

    requests: Sequence[ChatRequest]
    replies: MakeReplies = ChatReplies
    conversation: Sequence[dict[str, Any]] | None = None
    """The whole of it as items, if the body only refers to its beginning."""


class Arrival(NamedTuple):
    """A request as it came. `spoken`: its dialect, if providers may speak it; `attempt`: see `attempt_of`."""

    client: Request
    caller: Caller
    body: bytes
    spoken: Spoken | None
    attempt: Attempt | None


class _Way(NamedTuple):
    """On which terms a request is answered, and what begins its answer."""

    terms: Terms
    begin: Callable[[], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Responder:
    """See the module. `front`: where a provider stands in front of the policy."""

    planner: Planner
    endpoint: Endpoint
    repeats: IdempotentRequests
    limit: Limit
    front: Front | None = None

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
        way = await self._way(Arrival(client, caller, body, spoken, attempt_of(client.headers, asked)), read)
        # An answer that may not be logged is not kept for repeats either.
        key = client.headers.get("idempotency-key") if way.terms.logged else None
        response = await self.repeats.once(key, scope, asked, way.begin)
        response.headers.update(headers)
        return response

    async def _way(self, sent: Arrival, read: Callable[[bytes], Awaitable[Asked]]) -> _Way:
        try:
            asked = await read(sent.body)
            plans = [await self._plan(request, sent) for request in asked.requests]
        except InvalidRequest as error:
            return await self._elsewhere(sent, error)
        if (front := self.front) is not None:
            passes = sent.spoken in front.provider.dialects
            if (asked.conversation is not None or not passes) and await self._provider_share():
                plans = [plan.uncompared(passes=passes) for plan in plans]
            if plans[0].drawn.arm.name == PROVIDER:
                call = await front.call_of(sent, plans[0], asked.conversation)
                return _Way(plans[0].terms, partial(front.passing.respond, call, sent.client))
        return _Way(plans[0].terms, partial(self._answer, plans, sent, asked.replies))

    async def _answer(self, plans: Sequence[RequestPlan], sent: Arrival, replies: MakeReplies) -> Response:
        answer = self.endpoint.stream if plans[0].request.stream else self.endpoint.answer
        try:
            return await answer(plans, sent.client, replies)
        except InvalidRequest as error:  # what an engine cannot take either
            return await (await self._elsewhere(sent, error)).begin()

    async def _elsewhere(self, sent: Arrival, error: InvalidRequest) -> _Way:
        """What the own versions cannot take, at the provider. Raises `error`: it has no users, or cannot be asked for this."""
        front = self.front
        if front is None or sent.spoken not in front.provider.dialects:
            raise error
        has_users = await self._provider_share() > 0.0
        if not has_users and not isinstance(error, NotFound):
            raise error
        call = await front.call_of(sent)
        if not call.terms.may_draw or not (has_users or await front.passing.goes_on(call)):
            raise error
        return _Way(call.terms, partial(front.passing.respond, call, sent.client))

    async def _provider_share(self) -> float:
        return provider_share(await self.planner.arms.assignments.held())

    async def _plan(self, request: ChatRequest, sent: Arrival) -> RequestPlan:
        request = with_labels(request, sent.client.headers, sent.caller)
        request = request if self.front is None else self.front.renamed(request)
        return await self.planner.plan(request, sent.caller, sent.client.headers.get(PURPOSE_HEADER), sent.attempt)


def identity_of(client: Request, caller: Caller, body: bytes) -> tuple[str, bytes]:
    """In which scope idempotency keys are one's own, and a digest of all that tells a request from others.

    That is its path, its body and what its headers say: labels and purpose. The sessions of a group ask the same, each at its own URL:
    these are different requests. A request of a session's key or URL repeats no request of an app, even if that names the session.
    """
    headers = client.headers
    session = caller.session or headers.get(SESSION_HEADER)
    said = [headers.get(header) for header in LABELS if header != SESSION_HEADER]
    purpose = headers.get(PURPOSE_HEADER, "user")
    who = [caller.tenant, caller.session, session]
    asked = [client.scope["path"], said, purpose, *who, blake2b(body, digest_size=32).hexdigest()]
    return _as_json(who).decode(), blake2b(_as_json(asked), digest_size=32).digest()


def attempt_of(headers: Mapping[str, str], asked: bytes) -> Attempt | None:
    """Which attempt of a request this is; None if the client counts none, or sends an `Idempotency-Key`.

    The SDKs of OpenAI and Anthropic count their attempts, and by default send no `Idempotency-Key`. All attempts have one identity
    (`asked`, see `identity_of`), so a hash of it names the request. The join marks answers that a later attempt replaced.
    """
    count = headers.get(RETRY_COUNT, "")
    if headers.get("idempotency-key") or len(count) > _MAX_DIGITS or not (count.isascii() and count.isdecimal()):
        return None
    # Keyed with the caller's secret: the hash is stored in clear, and must not confirm a guessed body.
    secret = blake2b(authorization_of(headers).encode()).digest()
    return Attempt(blake2b(asked, digest_size=16, key=secret).hexdigest(), int(count))


def with_labels(request: ChatRequest, headers: Mapping[str, str], caller: Caller) -> ChatRequest:
    """The request with what its headers, and its session's key or URL, say of task, session and join key. Raises InvalidRequest: they differ, or a header is not valid."""
    labels = request.labels
    given = {key: headers[header] for header, key in LABELS.items() if header in headers}
    decided = {"session_id": caller.session, "task": caller.task, "session_group": caller.group}
    for source, said in (("a header", given), ("this session", decided)):
        for key, value in said.items():
            if value is not None and labels.get(key, value) != value:
                where = f"metadata.{key}"
                raise InvalidRequest(f"{source} and {where} say different things; send one of them", param=where)
        labels = labels | {key: value for key, value in said.items() if value is not None}
    if labels == request.labels:
        return request
    # The body's own pairs were checked when it was read, and only they are counted.
    check_metadata({key: value for key, value in labels.items() if key not in request.labels})
    return msgspec.structs.replace(request, metadata=labels)
