"""Signals in: routes, and what lives as long as they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from contracts.errors import InvalidRequest, MillraceError
from contracts.event_log import EventLog
from contracts.outbox import Relay
from contracts.settings import Settings
from contracts.tasks import load_tasks
from services.feedback.desk import Accepted, Desk
from services.feedback.relaying import RelayThread
from services.feedback.repository import PROCESS
from services.http import AnyCaller, KeyRing, ShapeType, make_service, read_json, reply

MAX_ITEMS = 1000
_ACCEPTED, _MULTIPLE = 202, 207


class _Batch(msgspec.Struct):
    items: list[Any]


def create_app(settings: Settings, *, event_log: EventLog | None = None) -> FastAPI:
    """The service of one home; `event_log` replaces the home's own.

    Raises:
        InvalidTask: a task file has a mistake.
    """
    database, log = settings.database(), event_log or settings.event_log()
    relay = RelayThread(Relay(PROCESS, database, log))

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        relay.start()
        yield
        await asyncio.to_thread(relay.stop)
        log.close()
        database.close()

    service = make_service("Millrace feedback", lifespan)
    service.state.keys = KeyRing(database)
    _add_routes(service, Desk(database, load_tasks(settings.tasks), relay))
    return service


def _add_routes(service: FastAPI, desk: Desk) -> None:
    @service.post("/v1/feedback")
    async def submit(request: Request, caller: AnyCaller) -> Response:
        item = await _read(desk, dict[str, Any], await request.body())
        [result] = await run_in_threadpool(desk.submit, [item], caller.tenant)
        if isinstance(result, MillraceError):
            raise result
        return reply(result, _ACCEPTED)

    @service.post("/v1/feedback/batch")
    async def submit_batch(request: Request, caller: AnyCaller) -> Response:
        batch = await _read(desk, _Batch, await request.body())
        if len(batch.items) > MAX_ITEMS:
            await run_in_threadpool(desk.reject, len(batch.items))
            raise InvalidRequest(f"a batch takes up to {MAX_ITEMS} items, not {len(batch.items)}", param="items")
        return reply(_answers(await run_in_threadpool(desk.submit, batch.items, caller.tenant)), _MULTIPLE)

    @service.get("/v1/feedback/{signal_id:path}")
    def show(signal_id: str, caller: AnyCaller) -> Response:
        return reply(desk.show(signal_id, caller.tenant))

    @service.delete("/v1/feedback/{signal_id:path}")
    def retract(signal_id: str, caller: AnyCaller) -> Response:
        return reply(desk.retract(signal_id, caller.tenant), _ACCEPTED)


async def _read(desk: Desk, shape: type[ShapeType], body: bytes) -> ShapeType:
    try:
        return read_json(shape, body)
    except InvalidRequest:
        await run_in_threadpool(desk.reject, 1)
        raise


def _answers(results: list[Accepted | MillraceError]) -> dict[str, list[dict[str, Any]]]:
    """Per item, by its place in the batch: what was acknowledged, and what was refused and why."""
    answers: dict[str, list[dict[str, Any]]] = {"successes": [], "errors": []}
    for index, result in enumerate(results):
        if isinstance(result, MillraceError):
            answers["errors"].append({"index": index, "status": result.status, **result.as_openai()})
        else:
            answers["successes"].append({"index": index, "status": _ACCEPTED, **msgspec.structs.asdict(result)})
    return answers
