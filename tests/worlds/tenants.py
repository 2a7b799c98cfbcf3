"""The process `web` of a home in which one tenant has traffic, and callers who may see none or only some of it.

In: nothing. Out: answers of the real applications, over ASGI, without a network or an engine. Waits for: nothing.
"""

from __future__ import annotations

import html
import re
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy import insert
from starlette.routing import Mount

from contracts.agent_sessions import SessionBudget, end_session, make_session
from contracts.assignments import LIVE, move
from contracts.event_log import Message
from contracts.ids import new_completion_id, response_id_of, route_of
from contracts.keys import Owner, Role, check_key, create_key
from contracts.records import (
    Generation,
    GenerationBody,
    Record,
    Signal,
    Submitter,
    encode,
    pack_body,
    pack_floats,
    pack_ids,
)
from contracts.sampling import Sampling, Span
from contracts.tables import received_signal
from contracts.tasks.loading import load_tasks
from contracts.topics import EPISODES, GENERATIONS, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.days import migrate
from runtime.operations import Operations
from runtime.settings import Settings
from runtime.worker import Worker
from services.inference.dialects.responses_kept import ResponseStore
from services.serving import make_web
from services.web import make
from tests.worlds.asgi import HOST, AsgiAnswer, ask
from tests.worlds.paths import EXAMPLE

POLICY, TASK = "demo", "reservations"
VICTIM, STRANGER = "canary-tenant", "stranger"
WORDS, PERSON = "canary-words", "canary-person"
SIGNAL_ID = "fb-of-the-victim"
NUM_ANSWERS = 3
ORIGIN = {"origin": f"http://{HOST}"}
_BASE = 0


class Route(NamedTuple):
    """A method and a path with its parameters, and the function behind it."""

    method: str
    path: str
    endpoint: object

    @property
    def name(self) -> str:
        """As one says it."""
        return f"{self.method} {self.path}"


class TenantsWorld(NamedTuple):
    """A running `web`.

    Attributes:
        answers: ids of the victim's completions, each kept as a response too: of an app, of the session `own`, of the session `other`.
        sessions: id and key of the victim's sessions by name; `ended` and `expired` are over.
    """

    settings: Settings
    app: FastAPI
    children: Mapping[str, FastAPI]
    answers: list[str]
    sessions: Mapping[str, tuple[str, str]]

    @property
    def database(self) -> Database:
        """A connection of its own, to be closed."""
        return self.settings.database()

    def key(self, role: Role = "app", tenant: str = STRANGER) -> str:
        """A new key with all that its role may do."""
        database = self.database
        with database.transaction() as connection:
            key = create_key(connection, role, tenant)
        database.close()
        return key

    async def ask(self, method: str, target: str, key: str | None, body: object = None) -> AsgiAnswer:
        """With a key as apps send it."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return await ask(self.app, method, target, headers, b"" if body is None else msgspec.json.encode(body))

    async def sign_in(self, key: str) -> dict[str, str]:
        """What a browser sends after it signed in with a key, and what its pages send along."""
        answer = await ask(self.app, "POST", "/api/login", ORIGIN, f"key={key}".encode())
        cookies = {"cookie": "; ".join(f"{name}={value}" for name, value in answer.cookies.items())}
        page = await ask(self.app, "GET", "/", cookies)
        csrf = re.search(r'data-csrf="([^"]+)"', page.body.decode())
        return cookies | ORIGIN | {"x-csrf-token": html.unescape(csrf[1]) if csrf else ""}


@asynccontextmanager
async def a_world() -> AsyncIterator[TenantsWorld]:
    """A home of its own, gone at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = Settings(
            home=Path(folder), run="attack", policy=POLICY, base=str(EXAMPLE / "base"), tasks=(EXAMPLE / "task.toml",),
            weights_unsigned=True, engine_port=1,
        )  # fmt: skip
        answers = _traffic(settings)
        children = make(settings)
        app = make_web(children, Operations())
        async with app.router.lifespan_context(app):
            sessions = _sessions(settings)
            await _keep(settings, dict(zip(answers, (None, "own", "other"), strict=True)), sessions)
            yield TenantsWorld(settings, app, children, answers, sessions)


def routes_of(world: TenantsWorld) -> list[Route]:
    """Every route of every application behind the port, mounted folders as `GET <folder>/{path}`."""
    found: dict[str, Route] = {}
    for app in (world.app, *world.children.values()):
        for known in iter_route_contexts(app.routes):
            for method in sorted((known.methods or {"GET"}) - {"HEAD"}):
                path = f"{known.path}/{{path}}" if isinstance(known.original_route, Mount) else str(known.path)
                route = Route(method, path, known.endpoint)
                found.setdefault(route.name, route)
    return sorted(found.values())


def target_of(world: TenantsWorld, route: Route, **named: str) -> str:
    """The route's path, whose parameters name what is the victim's. `named`: instead of that.

    Raises:
        KeyError: a parameter that this world has no value for: add one.
    """
    values = {"signal_id": SIGNAL_ID, "name": POLICY, "version": "0", "completion_id": world.answers[0], "choice": "0"}
    values |= {
        "path": "page.js",
        "session_id": world.sessions["own"][0],
        "response_id": response_id_of(world.answers[0]),
    }
    values |= named
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: values[found[1]], route.path)


def _sessions(settings: Settings) -> dict[str, tuple[str, str]]:
    database, found = settings.database(), dict[str, tuple[str, str]]()
    with database.transaction() as connection:
        now = time.time()
        maker = check_key(connection, f"Bearer {create_key(connection, 'app', VICTIM)}", now)
        for name in ("own", "other", "ended", "expired"):
            longest = 0.0 if name == "expired" else 3600.0
            made, key = make_session(connection, maker, TASK, SessionBudget(), now=now, longest=longest)
            found[name] = made.id, key
        end_session(connection, VICTIM, found["ended"][0], now)
    database.close()
    return found


async def _keep(settings: Settings, whose: Mapping[str, str | None], sessions: Mapping[str, tuple[str, str]]) -> None:
    """Keep a response for each completion, as if an app or a session had asked for it."""
    links = settings.replica_links()
    store = ResponseStore(links.sessions, 3600.0)
    for completion_id, name in whose.items():
        uuid = completion_id.partition("-")[2]
        items = [
            {"id": f"msg_{uuid}_{place}", "type": "message", "role": role, "content": [{"type": kind, "text": WORDS}]}
            for place, role, kind in (("in0", "user", "input_text"), ("0", "assistant", "output_text"))
        ]
        owner = Owner(VICTIM, None if name is None else sessions[name][0])
        await store.write(owner, completion_id, items, 1, {"id": response_id_of(completion_id), "object": "response"})
    await links.aclose()


def _traffic(settings: Settings) -> list[str]:
    """Answers of the victim's, what its user said, joined and scored by the real workers."""
    tasks = load_tasks(settings.tasks)
    database, log = settings.database(), settings.event_log()
    migrate(database)
    now = time.time()
    records = [_generation(now - 30) for _ in range(NUM_ANSWERS)]
    signals = [_signal(record, SIGNAL_ID if place == 0 else f"fb-{place}") for place, record in enumerate(records)]
    log.append([_message(GENERATIONS, record.key, record, log.num_partitions) for record in records])
    log.append([_message(SIGNALS, said.key, said, log.num_partitions) for said in signals])
    with database.transaction() as connection:
        move(
            connection,
            policy=POLICY,
            arm=LIVE,
            version=_BASE,
            expected_epoch=0,
            writer="attack",
            reason="base",
            share=1.0,
        )
        rows = [
            {"tenant": VICTIM, "id": said.id, "body_hash": "", "received_at": said.received_at, "record": encode(said)}
            for said in signals
        ]
        connection.execute(insert(received_signal), rows)
    for _ in range(4):
        Worker(EpisodesHandler(tasks), database, log).step()
        Worker(RewardsHandler(tasks, time.time, database), database, log).step()
    if not any(log.ends(EPISODES).values()):
        raise RuntimeError("nothing was joined")
    log.close()
    database.close()
    return [record.completion_id for record in records]


def _message(topic: str, key: str, record: Record, num_partitions: int) -> Message:
    return Message(topic, route_of(key.partition(":")[0]) % num_partitions, key, encode(record))


def _generation(at: float) -> Generation:
    body = GenerationBody(
        messages=[{"role": "user", "content": WORDS}], text=WORDS, prompt_ids=pack_ids([1, 2]),
        completion_ids=pack_ids([3, 4]), logprobs=pack_floats([-0.1, -0.2]),
    )  # fmt: skip
    return Generation(
        completion_id=new_completion_id(), choice=0, tenant=VICTIM, policy=POLICY, task=TASK, task_hash="ab12",
        purpose="user", arm=LIVE, arm_probability=1.0, spans=(Span(0, _BASE),), sampling=Sampling(temperature=1.0, max_tokens=8),
        finish_reason="stop", created_at=at, finished_at=at + 0.1, engine="millrace/1", dtype="BF16", person=PERSON,
        body=pack_body(body),
    )  # fmt: skip


def _signal(record: Generation, signal_id: str) -> Signal:
    at = record.finished_at + 1
    return Signal(
        id=signal_id, completion_id=record.completion_id, choice=0, name="accepted", value=True, at=at, received_at=at,
        tenant=VICTIM, submitter=Submitter(id=PERSON),
    )  # fmt: skip
