"""The application of feedback: connects its routes, writer and relay, and starts and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from contracts.event_log import EventLog
from contracts.tasks.loading import load_tasks
from runtime.log.outbox import Relay
from runtime.replicas import ReplicaLinks
from runtime.settings import Settings
from services.feedback.intake import SignalIntake
from services.feedback.langfuse import add_langfuse_routes
from services.feedback.otlp import add_otlp_routes
from services.feedback.pages import PageFeedback
from services.feedback.repository import PROCESS
from services.feedback.routes import add_receipt_route, add_routes
from services.feedback.writer import RelayThread, Writer
from services.http import KeyRing, make_service
from services.limits import Limit


def create_app(settings: Settings, *, event_log: EventLog | None = None, links: ReplicaLinks | None = None) -> FastAPI:
    """The application of one home; `event_log` and `links` replace the home's own. Raises InvalidTask: a task file has a mistake."""
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
    if origins := settings.feedback_origins:
        service.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("POST",),
            expose_headers=("retry-after",),
            max_age=7200,
        )
    tasks = load_tasks(settings.tasks)
    intake = SignalIntake(database, tasks, writer)
    pages = PageFeedback(
        database=database, tasks=tasks, intake=intake, limiter=links.limiter, limit=limit, origins=origins
    )
    add_routes(service, intake, limit, pages)
    add_receipt_route(service, pages, limit)
    add_langfuse_routes(service, intake, tasks, limit)
    add_otlp_routes(service, intake, tasks, limit)
    return service
