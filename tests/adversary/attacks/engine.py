"""Attacks on the engine's routes from outside, and by a broken engine on those who ask it.

Flows in: requests to the real application over loopback or ASGI; answers of a fake engine. Flows out: what got through.
Waits for: an attack's own time-outs, tenths of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import httpx
from starlette.routing import BaseRoute, Route

from runtime.engine_key import authorization
from services.engine.app import make_app
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.settings import EngineSettings
from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.cases.broken_answers import CASES, BrokenAnswer
from tests.worlds.engines.broken import gateway
from tests.worlds.engines.flood import overflow
from tests.worlds.engines.slow_grammars import NUM_SLOW, hold_up

KEY = "the-key-of-this-attack"
OPEN = ("GET", "/health")
_JSON, _TEXT = {"content-type": "application/json"}, {"content-type": "text/plain"}
_UNAUTHORIZED, _FORBIDDEN, _UNSUPPORTED = 401, 403, 415


class Door(NamedTuple):
    """One way in: a route, and what an attacker sends to it."""

    method: str
    path: str
    kind: str
    headers: dict[str, str]
    wanted: int
    """The status that refuses it."""


class ClosedEngine:
    """The real application over an engine that holds nothing."""

    def __init__(self) -> None:
        self.engine = Engine(
            policy="attacked",
            settings=EngineSettings(),
            store=cast("Any", _NoStore()),
            make_model=_never,
            on_swap=lambda _record: None,
            on_gave_up=_never,
        )
        self.app = make_app(self.engine, Follower(self.engine, dict, on_exit=_never), KEY)

    def routes(self) -> list[tuple[str, str]]:
        """Method and path of every route there is, as its router says."""
        return [
            (method, route.path)
            for route in _walk(self.app.routes)
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]

    def doors(self) -> list[Door]:
        """Every route by every kind of attacker."""
        return [door for method, path in self.routes() for door in _doors(method, path)]

    async def open_doors(self, doors: Sequence[Door]) -> list[str]:
        """Those that are not refused as they should be."""
        found = []
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            for door in doors:
                content = b'{"update_info": {"arm": "live", "version": 1}}' if door.method == "POST" else None
                answer = await client.request(door.method, door.path, content=content, headers=door.headers)
                if answer.status_code != door.wanted:
                    found.append(f"{door.method} {door.path} with {door.kind}: {answer.status_code}")
        if self.engine.is_paused:
            found.append("the engine is paused")
        return found


def _walk(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    for route in routes:
        included = getattr(route, "original_router", None)  # FastAPI keeps an included router whole
        if included is not None:
            yield from _walk(included.routes)
        elif isinstance(route, Route):
            yield route
        else:
            raise TypeError(f"{route!r} is a kind of route that nobody attacks yet")


def _doors(method: str, path: str) -> Iterator[Door]:
    allowed = authorization(KEY)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:8400"):
        yield Door(method, path, f"the origin {origin}", {**allowed, **_JSON, "origin": origin}, _FORBIDDEN)
    if (method, path) == OPEN:
        return
    wrong = ["", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "bearer null"]
    for value in wrong:
        yield Door(method, path, f"the key {value!r}", {**_JSON, "authorization": value}, _UNAUTHORIZED)
    yield Door(method, path, "no key", dict(_JSON), _UNAUTHORIZED)
    if method == "POST":
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json2"):
            yield Door(method, path, f"a body of {kind}", {**allowed, "content-type": kind}, _UNSUPPORTED)
        yield Door(method, path, "a body of no type", allowed, _UNSUPPORTED)


def attacks() -> list[Attack]:
    """See the module."""
    doors = ClosedEngine().doors()
    hidden = [
        Door("GET", path, kind, headers, wanted)
        for path in ("/docs", "/redoc", "/openapi.json", "/metrics", "/nowhere", "/health/", "//health")
        for kind, headers, wanted in (("no key", {}, _UNAUTHORIZED), ("the key", authorization(KEY), 404))
        if not (path == "/health/" and kind == "the key")  # Starlette sends the way to /health
    ]
    silent = [case for case in CASES if case.code == "engine_silent" and case.num_tokens == 0]
    return [
        Attack("speak to any route of the engine", lambda: _through(doors), len(doors)),
        Attack("find pages and routes that nobody wrote", lambda: _through(hidden), len(hidden)),
        Attack("fill the queue, and with rollouts before users", overflow, 80),
        Attack("hold up the grammars of others with slow ones, and leave", hold_up, NUM_SLOW),
        Attack("pass for an answer as a broken engine", lambda: _broken(CASES), 2 * len(CASES)),
        Attack("make an SDK that retries ask a slow engine again", lambda: _asked_again(silent), len(silent)),
    ]


def _through(doors: Sequence[Door]) -> str | None:
    closed = ClosedEngine()
    try:
        return "; ".join(asyncio.run(closed.open_doors(doors))) or None
    finally:
        closed.engine.close()


def _broken(cases: Sequence[BrokenAnswer]) -> str | None:
    with gateway() as attacked:
        found = [
            f"{case.name}: {trouble}"
            for case in cases
            for stream in (False, True)
            if (trouble := attacked.trouble(case, stream=stream)) is not None
        ]
        if not attacked.serves():
            found.append("whole answers do not come through any more")
    return "; ".join(found) or None


def _asked_again(cases: Sequence[BrokenAnswer]) -> str | None:
    """With the SDK's own retries on; that the gateway asks once by itself, `_broken` sees."""
    with gateway() as attacked:
        found = [
            f"{case.name}: {trouble}"
            for case in cases
            if (trouble := attacked.trouble_with_retries(case, 1)) is not None
        ]
    return "; ".join(found) or None


class _NoStore:
    """A weight store that nobody gets to."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"an attacker reached the weight store: {name}")


def _never() -> Any:
    raise AssertionError("an attacker reached the engine")
