"""The OpenAI-compatible endpoint: routes, and what lives as long as they do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

from contracts.errors import UnknownModel
from contracts.event_log import EventLog
from contracts.settings import Settings
from contracts.tasks import load_tasks
from services.http import AnyCaller, KeyRing, make_service, reply
from services.inference.arms import Assignments
from services.inference.endpoint import Endpoint
from services.inference.engine_client import PATIENCE_SECONDS, EngineClient
from services.inference.recorder import Recorder
from services.inference.requests import parse_chat_request
from services.inference.template import load_template

_STARTED_AT = int(time.time())


def create_app(
    settings: Settings, *, event_log: EventLog | None = None, patience_seconds: float = PATIENCE_SECONDS
) -> FastAPI:
    """The service of one home; `event_log` replaces the home's own, `patience_seconds` is how long engines may be gone.

    Raises:
        InvalidSettings: the base policy's folder lacks a file.
        InvalidTask: a task file has a mistake.
    """
    database, log = settings.database(), event_log or settings.event_log()
    engine, recorder = EngineClient(settings.engine_url, patience_seconds), Recorder(log)
    endpoint = Endpoint(
        policy=settings.policy,
        tasks=load_tasks(settings.tasks),
        template=load_template(settings.base),
        assignments=Assignments(database, settings.policy),
        engine=engine,
        recorder=recorder,
    )

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        yield
        await recorder.close()
        await engine.close()
        log.close()
        database.close()

    service = make_service("Millrace inference", lifespan)
    service.state.keys = KeyRing(database)
    _add_routes(service, endpoint)
    return service


def _add_routes(service: FastAPI, endpoint: Endpoint) -> None:
    @service.post("/v1/chat/completions")
    async def create_chat_completion(client: Request, caller: AnyCaller) -> Response:
        request = parse_chat_request(await client.body())
        plan = await endpoint.plan(request, caller, client.headers.get("x-millrace-purpose"))
        return await (endpoint.stream(plan, client) if request.stream else endpoint.answer(plan, client))

    @service.get("/v1/models")
    async def list_models(_caller: AnyCaller) -> Response:
        return reply({"object": "list", "data": [_model(name) for name in await endpoint.models()]})

    @service.get("/v1/models/{name}")
    async def retrieve_model(name: str, _caller: AnyCaller) -> Response:
        names = await endpoint.models()
        if name not in names:
            raise UnknownModel(f"the model {name!r} does not exist; there are {names}", param="model")
        return reply(_model(name))


def _model(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": _STARTED_AT, "owned_by": "millrace"}
