"""An embedded home with its real services and workers in one process, in front of an engine that repeats the prompt.

In: requests over ASGI. Out: files of the home, among them the log lines of the services. Waits for: the engine over loopback.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from fastapi import FastAPI

from contracts.event_log import EventLog
from contracts.keys import Role, create_key
from contracts.tasks.loading import load_tasks
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.days import migrate
from runtime.log.outbox import Relay
from runtime.logs import LEVEL, set_up_logs
from runtime.operations import Operations
from runtime.settings import Settings
from runtime.worker import Worker
from services.serving import make_web
from services.web import make
from tests.worlds.asgi import HOST, AsgiAnswer, ask
from tests.worlds.engines.echo import EchoEngine
from tests.worlds.paths import EXAMPLE

POLICY = "demo"
ORIGIN = {"origin": f"http://{HOST}"}
_TASKS = {
    "reservations": 'consent = "train"',
    "private": 'consent = "none"',
}
_TASK = """
name = "{name}"
window_seconds = 5
{consent}

[sampling]
owner = "task"
temperature = 1.0
max_tokens = 256

[signals.accepted]
type = "bool"
labels = {{ true = 1.0, false = 0.0 }}

[signals.edited]
type = "text"
reward = 0.0
"""


class StoreHome(NamedTuple):
    """A running home. `app` is what its one port serves."""

    settings: Settings
    app: FastAPI
    children: Mapping[str, FastAPI]
    engine: EchoEngine
    key: str
    operator: str

    async def post(self, path: str, content: object, **headers: str) -> AsgiAnswer:
        """As an app."""
        known = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        # Header names with hyphens are written with underscores.
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await ask(self.app, "POST", path, known | given, msgspec.json.encode(content))

    async def chat(self, text: str, headers: Mapping[str, str] | None = None, **fields: Any) -> str:
        """The id of a completion about a text."""
        body = {"model": POLICY, "messages": [{"role": "user", "content": text}], **fields}
        answer = await self.post("/v1/chat/completions", body, **(headers or {}))
        if answer.status != 200:
            raise RuntimeError(f"the attack's own request got {answer.status}: {answer.body.decode()}")
        return str(msgspec.json.decode(answer.body)["id"])

    def work(self, after_seconds: float = 0.0, num_rounds: int = 3) -> None:
        """Feedback's relay, the join and the rewards, as if so many seconds had passed."""
        with self.opened() as (database, log):
            tasks, now = load_tasks(self.settings.tasks), time.time() + after_seconds
            for _ in range(num_rounds):
                Relay("feedback", database, log).flush()
                Worker(EpisodesHandler(tasks, lambda: now), database, log, clock=lambda: now).step()
                Worker(RewardsHandler(tasks, lambda: now, database), database, log, clock=lambda: now).step()

    @contextmanager
    def opened(self) -> Iterator[tuple[Database, EventLog]]:
        """The home's database and log, on connections of their own."""
        database, log = self.settings.database(), self.settings.event_log()
        try:
            yield database, log
        finally:
            log.close()
            database.close()


@asynccontextmanager
async def a_home(**changes: Any) -> AsyncIterator[StoreHome]:
    """A home of its own, gone at the end. `changes`: settings, for example of servers."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        async with EchoEngine().serving() as engine:
            settings = _settings(home, {"engine_port": engine.port} | changes)
            app_key, operator = _prepared(settings)
            with _logging(home / "logs" / "web.log"):
                children = make(settings)
                app = make_web(children, Operations())
                async with app.router.lifespan_context(app):
                    yield StoreHome(settings, app, children, engine, app_key, operator)


def _settings(home: Path, changes: Mapping[str, Any]) -> Settings:
    files = []
    for name, consent in _TASKS.items():
        file = home / f"{name}.toml"
        file.write_text(_TASK.format(name=name, consent=consent))
        files.append(file)
    known = {"home": home, "run": "attack", "policy": POLICY, "base": str(EXAMPLE / "base"), "tasks": tuple(files),
             "weights_unsigned": True, "requests_per_minute": 0, "signals_per_minute": 0}  # fmt: skip
    return Settings.model_validate({**known, **changes})


def _prepared(settings: Settings) -> tuple[str, str]:
    database = settings.database()
    migrate(database)
    roles: tuple[Role, Role] = ("app", "operator")
    with database.transaction() as connection:
        app, operator = (create_key(connection, role) for role in roles)
    database.close()
    log = settings.event_log()
    log.create_topics()
    log.close()
    return app, operator


@contextmanager
def _logging(file: Path) -> Iterator[None]:
    """Every line that a process would print, down to `debug`, goes to a file of the home."""
    file.parent.mkdir()
    before, level = structlog.get_config(), os.environ.get(LEVEL)
    os.environ[LEVEL] = "debug"
    try:
        with file.open("w", buffering=1) as lines:
            with contextlib.redirect_stdout(lines):
                set_up_logs("web")
            yield
    finally:
        structlog.configure(**before)
        if level is None:
            del os.environ[LEVEL]
        else:
            os.environ[LEVEL] = level
