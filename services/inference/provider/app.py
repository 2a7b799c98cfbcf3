"""The application of inference in a home where a provider answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from contracts.event_log import EventLog
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from runtime.log.spool import Spool
from runtime.replicas import ReplicaLinks
from runtime.settings import Settings
from services.http import KeyRing, make_service
from services.inference.arrival import Admission
from services.inference.idempotency import IdempotentRequests
from services.inference.provider.passing import Passing
from services.inference.provider.routes import Front, add_provider_routes
from services.inference.provider.wire import ProviderClient
from services.inference.recorder import Recorder
from services.inference.sessions.budgets import SessionBudgets
from services.inference.sessions.routes import SessionUrls, add_session_routes
from services.inference.stored.routes import add_stored_routes
from services.limits import Limit
from services.provider import ProviderSettings


def create_provider_app(
    settings: Settings, provider: ProviderSettings, log: EventLog | Spool, links: ReplicaLinks
) -> FastAPI:
    """The application. Raises InvalidSettings: the provider's key is missing; InvalidTask."""
    database, policy, tasks = settings.database(), settings.policy, load_tasks(settings.tasks)
    recorder, budgets, repeats = Recorder(log), SessionBudgets(database), IdempotentRequests(links.idempotency)
    front = make_front(settings, provider, tasks=tasks, recorder=recorder, budgets=budgets, links=links)
    limit = Limit(links.limiter, "requests", settings.requests_per_minute)

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        yield
        await repeats.close()
        await links.aclose()
        await recorder.close()
        await budgets.close()
        await front.passing.client.close()
        await asyncio.to_thread(log.close)
        database.close()

    service = make_service("Millrace inference", lifespan)
    service.add_middleware(SessionUrls)
    service.state.keys = KeyRing(database)
    add_provider_routes(service, front, Admission(repeats, limit))
    add_stored_routes(service, database, policy, limit)
    add_session_routes(service, database, tasks, limit, settings.session_seconds)
    return service


def make_front(
    settings: Settings,
    provider: ProviderSettings,
    *,
    tasks: Mapping[str, Task],
    recorder: Recorder,
    budgets: SessionBudgets,
    links: ReplicaLinks,
) -> Front:
    """What passes requests on to the provider of a home. Raises InvalidSettings: the provider's key is missing."""
    passing = Passing(
        provider=provider,
        client=ProviderClient(provider),
        recorder=recorder,
        budgets=budgets,
        kept=links.sessions,
        seconds=settings.session_seconds,
    )
    return Front(policy=settings.policy, tasks=tasks, provider=provider, passing=passing)
