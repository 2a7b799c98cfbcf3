"""The routes of a home where a provider answers: each dialect that it speaks, and the one model."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
from fastapi import FastAPI, Request, Response

from contracts.errors import InvalidRequest, UnknownModel, Unsupported
from contracts.ids import new_completion_id
from contracts.keys import Caller
from contracts.tasks import Task
from services.http import InferenceCaller, off_loop, reply, with_caller
from services.inference.dialects.anthropic_replies import in_anthropics_shape
from services.inference.idempotency import IdempotentRequests
from services.inference.provider.chat import Chats
from services.inference.provider.dialect import Dialect
from services.inference.provider.messages import Messages
from services.inference.provider.passing import Passing
from services.inference.provider.records import PassedCall
from services.inference.provider.responses import Responses
from services.inference.responder import PURPOSE_HEADER, attempt_of, identity_of, with_labels
from services.inference.terms import read_terms
from services.limits import Limit
from services.provider import ProviderSettings

_STARTED_AT = int(time.time())


@dataclass(frozen=True, kw_only=True)
class Front:
    """Plans the requests to a provider, and passes them on."""

    policy: str
    tasks: Mapping[str, Task]
    provider: ProviderSettings
    passing: Passing
    repeats: IdempotentRequests
    limit: Limit

    async def respond(self, dialect: Dialect, client: Request, caller: Caller) -> Response:
        """Answer a request; it counts against the caller's limit before its body is read."""
        headers, body = await self.limit.check(caller), await client.body()
        if dialect.spoken not in self.provider.dialects:
            spoken = ", ".join(self.provider.dialects)
            raise Unsupported(f"{self.provider.origin}, which answers here, speaks {spoken} and not {dialect.spoken}")
        sent = await off_loop(dialect.read, body)
        request = with_labels(sent.request, client.headers, caller)
        if request.model == self.provider.model:
            request = msgspec.structs.replace(request, model=self.policy)
        scope, asked = identity_of(client, caller, body)
        terms = read_terms(request, caller, client.headers.get(PURPOSE_HEADER), self.policy, tasks=self.tasks)
        if terms.version is not None or not terms.requirement.any_will_do:
            raise InvalidRequest(f"there are no versions here: {self.provider.origin} answers", param="model")
        call = PassedCall(
            completion_id=new_completion_id(request.labels.get("session_id"), stored=terms.logged),
            created_at=time.time(),
            policy=self.policy,
            caller=caller,
            terms=terms,
            dialect=dialect,
            sent=sent._replace(request=request),
            attempt=attempt_of(client.headers, asked) if terms.purpose == "user" else None,
            headers=client.headers,
        )
        key = client.headers.get("idempotency-key") if terms.logged else None
        response = await self.repeats.once(key, scope, asked, partial(self.passing.respond, call, client))
        response.headers.update(headers)
        return response


def add_provider_routes(service: FastAPI, front: Front) -> None:
    """Add the routes to an application."""

    def route(dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        @with_caller
        async def pass_on(client: Request, caller: InferenceCaller) -> Response:
            """Ask the provider, in its own dialect.

            Fields that Millrace does not know are passed on as they are; its own labels in the metadata are not. The id of the answer is
            Millrace's: feedback refers to it.
            """
            return await front.respond(dialect, client, caller)

        return pass_on

    chats, responses, messages = Chats(), Responses(), Messages()
    service.add_route("/v1" + chats.path, route(chats), methods=["POST"])
    service.add_route("/v1" + responses.path, route(responses), methods=["POST"])
    service.add_route("/v1" + messages.path, in_anthropics_shape(route(messages)), methods=["POST"])

    @service.get("/v1/models")
    async def list_models(_caller: InferenceCaller) -> Response:
        """The one model that can be asked for."""
        return reply({"object": "list", "data": [_model(front)]})

    @service.get("/v1/models/{name:path}")
    async def retrieve_model(name: str, _caller: InferenceCaller) -> Response:
        """The model, by its name here or at the provider."""
        if name not in {front.policy, front.provider.model}:
            raise UnknownModel(f"the model {name!r} does not exist; there is {front.policy!r}", param="model")
        return reply(_model(front))


def _model(front: Front) -> dict[str, str | int]:
    return {"id": front.policy, "object": "model", "created": _STARTED_AT, "owned_by": front.provider.origin}
