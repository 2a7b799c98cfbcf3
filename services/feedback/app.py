"""Signals in: routes, and what lives as long as they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from contracts.errors import InvalidRequest, MillraceError
from contracts.event_log import EventLog
from contracts.tasks.loading import load_tasks
from runtime.log.outbox import Relay
from runtime.replicas import ReplicaLinks
from runtime.settings import Settings
from services.feedback.desk import Accepted, Desk
from services.feedback.relaying import RelayThread
from services.feedback.repository import PROCESS
from services.feedback.requests import FeedbackItem
from services.feedback.writer import Writer
from services.http import FeedbackCaller, KeyRing, ShapeType, make_service, read_json, reply, with_caller
from services.limits import Limit
from services.openapi import takes

MAX_ITEMS = 1000
_ACCEPTED, _MULTIPLE = 202, 207


class _Batch(msgspec.Struct):
    items: list[Any]


class FeedbackBatch(msgspec.Struct):
    """What a batch should be; items are read one by one, so that a bad one costs itself."""

    items: list[FeedbackItem]


def create_app(settings: Settings, *, event_log: EventLog | None = None, links: ReplicaLinks | None = None) -> FastAPI:
    """The service of one home; `event_log` and `links` replace the home's own.

    Raises:
        InvalidTask: a task file has a mistake.
    """
    database, log = settings.database(), event_log or settings.event_log()
    links = links or settings.replica_links()
    relay = RelayThread(database, Relay(PROCESS, database, log))
    writer = Writer(database, relay.wake)

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        relay.start()
        yield
        await links.aclose()
        await writer.close()
        await asyncio.to_thread(relay.stop)
        log.close()
        database.close()

    service = make_service("Millrace feedback", lifespan)
    service.state.keys = KeyRing(database)
    limit = Limit(links.limiter, "signals", settings.signals_per_minute)
    _add_routes(service, Desk(database, load_tasks(settings.tasks), writer), limit)
    return service


def _add_routes(service: FastAPI, desk: Desk, limit: Limit) -> None:
    @with_caller
    @takes(FeedbackItem)
    async def submit(request: Request, caller: FeedbackCaller) -> Response:
        standing = await limit.check(caller)
        body = await request.body()
        item = await _read(desk, dict[str, Any], body)
        [result] = await desk.submit([item], caller, len(body))
        if isinstance(result, MillraceError):
            raise result
        return reply(result, _ACCEPTED, standing)

    # Starlette's own route: there is nothing to inject, and FastAPI's would cost half of the endpoint's time.
    service.add_route("/v1/feedback", submit, methods=["POST"])

    @service.post("/v1/feedback/batch")
    @takes(FeedbackBatch)
    async def submit_batch(request: Request, caller: FeedbackCaller) -> Response:
        body = await request.body()
        batch = await _read(desk, _Batch, body)
        if len(batch.items) > MAX_ITEMS:
            await desk.reject(len(batch.items))
            raise InvalidRequest(f"a batch takes up to {MAX_ITEMS} items, not {len(batch.items)}", param="items")
        standing = await limit.check(caller, len(batch.items))
        results = await desk.submit(batch.items, caller, len(body))
        return reply(_answers(results), _MULTIPLE, standing)

    @service.get("/v1/feedback/{signal_id:path}")
    def show(signal_id: str, caller: FeedbackCaller) -> Response:
        return reply(desk.show(signal_id, caller.tenant))

    @service.delete("/v1/feedback/{signal_id:path}")
    async def retract(signal_id: str, caller: FeedbackCaller) -> Response:
        return reply(await desk.retract(signal_id, caller.tenant), _ACCEPTED)


async def _read(desk: Desk, shape: type[ShapeType], body: bytes) -> ShapeType:
    try:
        return read_json(shape, body)
    except InvalidRequest:
        await desk.reject(1)
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
