"""The routes of inference: OpenAI's chat completions and models, and the hosted hot-load contract."""

from __future__ import annotations

import asyncio
import time

from fastapi import FastAPI, Request, Response

from contracts.errors import UnknownModel
from services.http import InferenceCaller, OperatorReader, OperatorWriter, off_loop, read_json, reply, with_caller
from services.inference.dialects.prompts import PROMPT_EXAMPLE, PromptBody, PromptReplies, parse_prompts, prompt_notes
from services.inference.fields import CHAT_EXAMPLE, Body, chat_notes
from services.inference.hot_load import HOT_LOAD_NOTES, HotLoad, HotLoadRequest
from services.inference.requests import parse_chat_request
from services.inference.responder import Asked, Responder
from services.openapi import takes

HOT_LOAD = "/hot_load/v1/models/hot_load"
_STARTED_AT = int(time.time())


def add_routes(service: FastAPI, responder: Responder) -> None:
    """Add the routes of OpenAI's API to an application."""
    arms = responder.planner.arms

    @with_caller
    @takes(Body, notes=chat_notes(), example=CHAT_EXAMPLE)
    async def create_chat_completion(client: Request, caller: InferenceCaller) -> Response:
        """Answer a conversation, as OpenAI's chat completions.

        With an `Idempotency-Key` header, a repeated request gets the first answer. Without `stream` the answer comes once it is
        durable; with it, `[DONE]` does. Answers have three fields beside OpenAI's: `policy_version` (null if an
        engine was lost before it told which version made the tokens), `sampling` and, if the task asks users for feedback,
        `ask_feedback`.
        """

        async def read(body: bytes) -> Asked:
            return Asked([await off_loop(parse_chat_request, body)])

        return await responder.respond(client, caller, read, "chat")

    @with_caller
    @takes(PromptBody, notes=prompt_notes(), example=PROMPT_EXAMPLE)
    async def create_completion(client: Request, caller: InferenceCaller) -> Response:
        """Continue one or more prompts, as OpenAI's completions from before chats.

        A prompt is given to the model as it is: no chat template is put around it. Answers are logged like those of chats.
        """

        async def read(body: bytes) -> Asked:
            return Asked(await off_loop(parse_prompts, body), PromptReplies)

        return await responder.respond(client, caller, read)

    # Starlette's own route: FastAPI's dependencies and validation take as long as the rest, and this route needs neither.
    service.add_route("/v1/chat/completions", create_chat_completion, methods=["POST"])
    service.add_route("/v1/completions", create_completion, methods=["POST"])

    @service.get("/v1/models")
    async def list_models(_caller: InferenceCaller) -> Response:
        """The policy, and the versions of it that can be asked for now."""
        return reply({"object": "list", "data": [_model(name) for name in await arms.models()]})

    @service.get("/v1/models/{name}")
    async def retrieve_model(name: str, _caller: InferenceCaller) -> Response:
        """One of the models."""
        names = await arms.models()
        if name not in names:
            raise UnknownModel(f"the model {name!r} does not exist; there are {names}", param="model")
        return reply(_model(name))


def add_hot_load_routes(service: FastAPI, hot_load: HotLoad) -> None:
    """Add the two routes of the hot-load contract to an application."""

    @service.post(HOT_LOAD)
    @takes(HotLoadRequest, notes=HOT_LOAD_NOTES)
    async def signal(request: Request, caller: OperatorWriter) -> Response:
        """Point the arm `live` at a version that is durable: the hosted hot-load contract."""
        wanted = read_json(HotLoadRequest, await request.body())
        return reply(await asyncio.to_thread(hot_load.point, wanted, caller))

    @service.get(HOT_LOAD)
    async def state(_caller: OperatorReader) -> Response:
        """How far the engines have followed the last hot load."""
        return reply(await hot_load.state())


def _model(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": _STARTED_AT, "owned_by": "millrace"}
