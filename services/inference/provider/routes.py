"""The routes of a home where a provider answers: each dialect that it speaks, and the one model."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from contracts.errors import InvalidRequest, UnknownModel, Unsupported
from contracts.ids import new_completion_id
from contracts.tasks import Task
from services.http import InferenceCaller, off_loop, reply, with_caller
from services.inference.arrival import PURPOSE_HEADER, Admission, AnswerPath, Arrival, with_labels
from services.inference.dialects.anthropic_replies import in_anthropics_shape
from services.inference.plan import RequestPlan
from services.inference.provider.chat import Chats
from services.inference.provider.dialect import Dialect
from services.inference.provider.messages import Messages
from services.inference.provider.passing import Passing
from services.inference.provider.records import PassedCall
from services.inference.provider.responses import Responses, with_conversation
from services.inference.requests import ChatRequest
from services.inference.terms import read_terms
from services.provider import ProviderSettings, Spoken

DIALECTS: Mapping[str, Dialect] = {dialect.spoken: dialect for dialect in (Chats(), Responses(), Messages())}
_STARTED_AT = int(time.time())


@dataclass(frozen=True, kw_only=True)
class Front:
    """Reads requests as they are passed on to a provider."""

    policy: str
    tasks: Mapping[str, Task]
    provider: ProviderSettings
    passing: Passing

    async def only_path_of(self, sent: Arrival) -> AnswerPath:
        """The path of a home without a policy of its own. Raises InvalidRequest: it asks for a version."""
        path = await self.path_of(sent)
        if path.terms.version is not None or not path.terms.requirement.any_will_do:
            raise InvalidRequest(f"there are no versions here: {self.provider.origin} answers", param="model")
        return path

    def renamed(self, request: ChatRequest) -> ChatRequest:
        """The request, for the policy also if it has the provider's name of the model: apps may keep that."""
        is_theirs = request.model == self.provider.model
        return msgspec.structs.replace(request, model=self.policy) if is_theirs else request

    def passes(self, spoken: Spoken | None) -> bool:
        """Whether the provider speaks this dialect."""
        return spoken in self.provider.dialects

    async def path_of(
        self,
        sent: Arrival,
        plan: RequestPlan | None = None,
        conversation: Sequence[dict[str, Any]] | None = None,
    ) -> AnswerPath:
        """The path to the provider. Arguments and errors as of `call_of`."""
        call = await self.call_of(sent, plan, conversation)
        return AnswerPath(call.terms, partial(self.passing.respond, call, sent.client))

    async def goes_on(self, sent: Arrival) -> bool:
        """Whether a request goes on from a response of the provider's. Raises as `call_of`."""
        return await self.passing.goes_on(await self.call_of(sent))

    async def call_of(
        self,
        arrived: Arrival,
        plan: RequestPlan | None = None,
        conversation: Sequence[dict[str, Any]] | None = None,
    ) -> PassedCall:
        """What is passed on. `plan`: as which the own versions would have answered it; id, terms and draw are those of the plan.

        `conversation`: that the provider does not know, see `Asked`.

        Raises InvalidRequest: it names a version, or has no form that is passed on; Unsupported: the provider speaks another dialect.
        """
        client, caller, body, spoken, attempt = arrived
        if spoken is None or not self.passes(spoken):
            speaks = ", ".join(self.provider.dialects)
            raise Unsupported(f"{self.provider.origin}, which answers here, speaks {speaks} and not {spoken}")
        dialect = DIALECTS[spoken]
        body = body if conversation is None else with_conversation(body, conversation)
        sent = await off_loop(dialect.read, body)
        request = self.renamed(with_labels(sent.request, client.headers, caller))
        sent = sent._replace(request=request) if plan is None else sent.planned(request, plan.request)
        purpose = client.headers.get(PURPOSE_HEADER)
        terms = plan.terms if plan else read_terms(request, caller, purpose, self.policy, tasks=self.tasks)
        session = request.labels.get("session_id")
        return PassedCall(
            completion_id=plan.completion_id if plan else new_completion_id(session, stored=terms.logged),
            created_at=plan.created_at if plan else time.time(),
            policy=self.policy,
            caller=caller,
            terms=terms,
            dialect=dialect,
            sent=sent,
            attempt=attempt if terms.purpose == "user" else None,
            headers=client.headers,
            drawn=plan.drawn if plan else None,
        )


def add_provider_routes(service: FastAPI, front: Front, admission: Admission) -> None:
    """Add the routes to an application."""

    def route(spoken: Spoken) -> Callable[[Request], Awaitable[Response]]:
        @with_caller
        async def pass_on(client: Request, caller: InferenceCaller) -> Response:
            """Ask the provider, in its own dialect.

            Fields that Millrace does not know are passed on as they are; its own labels in the metadata are not. The id of the answer is
            Millrace's: feedback refers to it.
            """
            return await admission.respond(client, caller, spoken, front.only_path_of)

        return pass_on

    service.add_route("/v1/chat/completions", route("chat"), methods=["POST"])
    service.add_route("/v1/responses", route("responses"), methods=["POST"])
    service.add_route("/v1/messages", in_anthropics_shape(route("messages")), methods=["POST"])

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
