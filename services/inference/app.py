"""The application of inference: connects its routes, endpoint and engines, and starts and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI

from contracts.assignments import MOVED
from contracts.draws import UnitKind
from contracts.event_log import EventLog
from contracts.tasks.loading import load_tasks
from contracts.version_history import BASE, stored_parents
from engines.card_users import CardUsers, budget_seconds
from runtime.base_policy import fingerprint
from runtime.engine_key import engine_key
from runtime.log.spool import Spool
from runtime.metrics import SPOOL_BYTES, SPOOL_OLDEST_SECONDS, SPOOL_RECORDS
from runtime.operations import WeightStoreMetrics
from runtime.replicas import ReplicaLinks
from runtime.settings import Settings
from runtime.template.chat_template import load_template
from services.http import KeyRing, make_service
from services.inference.arms import Arms, Assignments, SessionUnits
from services.inference.arrival import Admission
from services.inference.dialects.anthropic_routes import add_message_routes
from services.inference.dialects.responses_kept import ResponseStore
from services.inference.dialects.responses_routes import add_responses_routes
from services.inference.endpoint import Endpoint
from services.inference.engine.connection import EngineConnection
from services.inference.engine.http import READ_SECONDS
from services.inference.engine.pool import PATIENCE_SECONDS, EnginePool
from services.inference.engine.rows import FixedEngine, ReplicaRows, reader_of
from services.inference.hot_load import HotLoad
from services.inference.idempotency import IdempotentRequests
from services.inference.plan import Planner
from services.inference.provider.passing import Passing
from services.inference.provider.routes import Front, add_provider_routes
from services.inference.provider.wire import ProviderClient
from services.inference.recorder import Recorder
from services.inference.responder import Responder
from services.inference.routes import add_hot_load_routes, add_routes
from services.inference.sessions.budgets import SessionBudgets
from services.inference.sessions.routes import SessionUrls, add_session_routes
from services.inference.sessions.turns import Turns
from services.inference.stored.routes import add_stored_routes
from services.inference.tokenize import add_tokenize_route
from services.limits import Limit
from services.provider import load_provider

if TYPE_CHECKING:
    from weights.stores.store import WeightStore


def create_app(
    settings: Settings,
    *,
    event_log: EventLog | None = None,
    links: ReplicaLinks | None = None,
    list_versions: Callable[[], Collection[int]] | None = None,
    unit: UnitKind = "user",
    patience_seconds: float = PATIENCE_SECONDS,
    silence_seconds: float = READ_SECONDS,
) -> FastAPI:
    """The application of one home; `event_log`, `links` and `list_versions` (of the weight store) replace the home's own.

    `unit`: what gets an arm; `patience_seconds`: how long the engine may be unreachable; `silence_seconds`: the longest time without a token.
    Raises InvalidSettings: the base policy's folder lacks a file, the URL of Redis is not valid, or the provider's key is missing; InvalidTask.
    """
    log, links = event_log or _durable_log(settings), links or settings.replica_links()
    policy, provider, seconds = settings.policy, load_provider(settings), settings.session_seconds
    database, tasks = settings.database(), load_tasks(settings.tasks)
    recorder, budgets, repeats = Recorder(log), SessionBudgets(database), IdempotentRequests(links.idempotency)
    limit = Limit(links.limiter, "requests", settings.requests_per_minute)
    admission, front = Admission(repeats, limit), None
    begin, ends = list[Callable[[], None]](), [repeats.close, links.aclose, recorder.close, budgets.close]
    if provider is not None:
        client, kept = ProviderClient(provider), links.sessions
        passing = Passing(
            provider=provider, client=client, recorder=recorder, budgets=budgets, kept=kept, seconds=seconds
        )
        front = Front(policy=policy, tasks=tasks, provider=provider, passing=passing)
        ends.append(client.close)

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        for start in begin:
            start()
        yield
        for end in ends:
            await end()
        await asyncio.to_thread(log.close)
        database.close()

    service = make_service("Millrace inference", lifespan)
    service.add_middleware(SessionUrls)
    service.state.keys = KeyRing(database)
    if front is not None and not settings.base:
        add_provider_routes(service, front, admission)
        add_stored_routes(service, database, policy, limit)
        add_session_routes(service, database, tasks, limit, seconds)
        return service
    assignments, template = Assignments(database, policy), load_template(settings.base)
    key, region, url = engine_key(settings.home), settings.region, settings.engine_url
    fixed = FixedEngine(url, policy, region, EngineConnection(url, key, silence_seconds))
    engine = service.state.engines = EnginePool(
        policy=policy,
        region=region,
        rows=ReplicaRows(reader_of(database, policy, settings.run, fingerprint(settings.base)), fixed=fixed),
        connect=lambda url: EngineConnection(url, key, silence_seconds),
        are_assigned=assignments.include,
        patience_seconds=patience_seconds,
        users=None if budget_seconds(settings) is None else CardUsers(settings),
    )
    begin.append(partial(links.bell.listen, MOVED, assignments.look_again))
    ends.append(engine.close)
    turns = Turns(template, links.sessions, seconds)
    units = SessionUnits(unit, links.sessions, seconds)
    arms = Arms(policy=policy, assignments=assignments, units=units, engine=engine, has_front=provider is not None)
    planner = Planner(policy=policy, tasks=tasks, template=template, turns=turns, arms=arms)
    endpoint = Endpoint(tokenizer=template.tokenizer, engine=engine, recorder=recorder, turns=turns, budgets=budgets)
    responder = Responder(planner=planner, endpoint=endpoint, admission=admission, front=front)
    add_routes(service, responder)
    add_message_routes(service, responder)
    add_tokenize_route(service, planner, limit)
    add_responses_routes(service, responder, ResponseStore(links.sessions, seconds))
    add_stored_routes(service, database, policy, limit)
    add_session_routes(service, database, tasks, limit, seconds)
    hot_load = HotLoad(
        policy=policy,
        database=database,
        list_versions=list_versions or (lambda: _weight_store(settings).versions(policy)),
        read_parents=lambda known: stored_parents(_weight_store(settings), policy, BASE, known),
        bell=links.bell,
        assignments=assignments,
        engine=engine,
    )
    add_hot_load_routes(service, hot_load)
    return service


def _durable_log(settings: Settings) -> EventLog | Spool:
    """The home's log. While Kafka is unreachable, records wait on this machine's disk."""
    log = settings.event_log()
    if settings.kafka is None:
        return log
    spool = Spool(log, settings.home / "spool")
    SPOOL_RECORDS.set_function(lambda: spool.num_waiting)
    SPOOL_BYTES.set_function(lambda: spool.waiting_bytes)
    SPOOL_OLDEST_SECONDS.set_function(lambda: spool.oldest_age_seconds)
    return spool


def _weight_store(settings: Settings) -> WeightStore:
    from weights.stores.opening import open_weight_store  # noqa: PLC0415 its codecs are only for readers of weights

    return open_weight_store(settings, measures=WeightStoreMetrics())
