"""How long one request holds the event loop of `web`, on every route, with the largest bodies that it allows.

A ticker on the same loop notes the longest time in which it did not run: so long nobody else was served. The routes come from the
routers; one that `bodies.py` has no body for fails by name. The policy is the demo agent's with a context of 131,072 tokens, the engine a
mock in a process of its own, and the requests come over ASGI, as one piece each.

usage: python -m benchmarks.gateway.held [--quick] [ROUTE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
import uvloop
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from benchmarks.gateway.bodies import POLICY, Kept, body_of, cases_of
from benchmarks.report import print_table, summarise, write_report
from commands.home import prepare_home
from runtime.operations import Operations
from runtime.settings import Settings
from services.serving import make_web
from services.web import make
from tests.worlds.asgi import AsgiAnswer, ask
from tests.worlds.gateway import mock_engine
from tests.worlds.paths import ROOT
from tests.worlds.processes import process

GOAL_MS = 30.0
CONTEXT = 131_072
_SUPPORT = ROOT / "examples" / "support"
_TICK = 0.001
_NUM_KEPT = 70
_PATIENCE_SECONDS = 60.0
_PAGE = "?limit=100"
_ROUNDS = 3


class HeldPlace(NamedTuple):
    """A running `web`. `children`: its applications by prefix."""

    app: FastAPI
    children: dict[str, FastAPI]
    key: str
    operator: str

    async def ask(self, method: str, target: str, body: bytes = b"", *, operator: bool = False) -> AsgiAnswer:
        """One request."""
        headers = {"authorization": f"Bearer {self.operator if operator else self.key}"}
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await ask(self.app, method, target, headers, body)


class Ticker:
    """Notes the longest time in which the loop did not come round, in ms."""

    def __init__(self) -> None:
        self._longest = self._at = 0.0
        self._task = asyncio.create_task(self._tick())

    def restart(self) -> None:
        """Forget what was."""
        self._longest, self._at = 0.0, time.perf_counter()

    @property
    def held_ms(self) -> float:
        """The longest since the restart."""
        return 1000 * max(self._longest, time.perf_counter() - self._at - _TICK)

    def end(self) -> None:
        """Stop."""
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            now = time.perf_counter()
            self._longest, self._at = max(self._longest, now - self._at - _TICK), now


def routes_of(children: dict[str, FastAPI]) -> list[str]:
    """Every route of inference and feedback."""
    apps = dict.fromkeys(app for app in children.values() if app.title != "Millrace dashboard")
    return sorted(
        {
            f"{method} {route.path}"
            for app in apps
            for route in iter_route_contexts(app.routes)
            for method in (route.methods or {"GET"}) - {"HEAD"}
        }
    )


@asynccontextmanager
async def serving(home: Path, engine_port: int) -> AsyncIterator[HeldPlace]:
    """The process `web`, here."""
    base = Path(shutil.copytree(_SUPPORT / "base", home.parent / "base"))
    config = json.loads((base / "config.json").read_text()) | {"max_position_embeddings": CONTEXT}
    (base / "config.json").write_text(json.dumps(config))
    settings = Settings(
        requests_per_minute=0, signals_per_minute=0, home=home, run="held", policy=POLICY, base=str(base),
        tasks=(_SUPPORT / "task.toml",), engine_port=engine_port,
    )  # fmt: skip
    keys = prepare_home(settings, {})
    children = dict(make(settings))
    app = make_web(children, Operations())
    async with app.router.lifespan_context(app):
        place = HeldPlace(app, children, keys.app_key or "", keys.operator_key or "")
        for _ in range(600):
            if (await place.ask("POST", "/v1/chat/completions", _hello())).status == 200:  # noqa: PLR2004 OK
                break
            await asyncio.sleep(0.1)
        # As `services/serving.py` does it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        yield place


async def prepared(place: HeldPlace) -> Kept:
    """Responses with tools of 234 KB, a session and a signal."""
    properties = {f"property_{number:05}_of_many": {"type": "string"} for number in range(1500)}
    schema = {"type": "object", "properties": properties}
    tools = [{"type": "function", "name": f"f{number}", "parameters": schema} for number in range(4)]
    body = msgspec.json.encode({"model": POLICY, "input": "hi", "tools": tools})
    answers = [await place.ask("POST", "/v1/responses", body) for _ in range(_NUM_KEPT)]
    responses = [msgspec.json.decode(answer.body)["id"] for answer in answers]
    session = msgspec.json.decode((await place.ask("POST", "/v1/sessions", b"{}")).body)["id"]
    completion = msgspec.json.decode((await place.ask("POST", "/v1/chat/completions", _hello())).body)["id"]
    return Kept(responses, completion, "no-signal", session)


async def measure(place: HeldPlace, wanted: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """One row a case.

    Raises:
        RuntimeError: a route has no case in `bodies.py`, or a case has no route.
    """
    cases, routes = cases_of(kept := await prepared(place)), routes_of(place.children)
    if strange := sorted(set(routes) ^ set(cases)):
        raise RuntimeError(f"benchmarks/gateway/bodies.py and the routers differ about {', '.join(strange)}")
    ticker, rows = Ticker(), list[dict[str, Any]]()
    for route in routes:
        if wanted and not any(part in route for part in wanted):
            continue
        method, _, path = route.partition(" ")
        for case in cases[route]:
            body, samples, status = body_of(case), list[float](), 0
            for _ in range(rounds):
                ticker.restart()
                answer = await place.ask(method, _target(path, kept), body, operator="hot_load" in path)
                samples.append(ticker.held_ms)
                status = answer.status
                await asyncio.sleep(0.02)
            rows.append(
                {"route": route, "case": case[0], "bytes": len(body), "status": status, "held_ms": summarise(samples)}
            )
            print(
                f"{route}, {case[0] or 'nothing'}: {status}, {rows[-1]['held_ms']['median']:.1f} ms",
                file=sys.stderr,
                flush=True,
            )
    ticker.end()
    return rows


def _target(path: str, kept: Kept) -> str:
    if path == "/v1/chat/completions" or path.endswith(("/messages", "/input_items")):
        path += _PAGE
    values = {
        "name": POLICY, "response_id": kept.responses[0], "completion_id": kept.completion, "session_id": kept.session,
        "signal_id": kept.signal,
    }  # fmt: skip
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: values[found[1]], path)


def _hello() -> bytes:
    return msgspec.json.encode({"model": POLICY, "messages": [{"role": "user", "content": "hi"}]})


async def run(wanted: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Everything."""
    with tempfile.TemporaryDirectory() as folder, process(mock_engine()) as engine:
        assert engine.stdout is not None  # noqa: S101 it was opened as a pipe
        port = int(await asyncio.to_thread(engine.stdout.readline))
        async with serving(Path(folder) / "home", port) as place:
            return await measure(place, wanted, rounds)


def main() -> int:
    """The command line; 1 if a request holds the loop for longer than the goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.held", description=__doc__)
    parser.add_argument("routes", nargs="*", metavar="ROUTE", help="parts of the names of routes; default: all")
    parser.add_argument("--quick", action="store_true", help="each case once, and no file")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rows = uvloop.run(run(options.routes, 1 if options.quick else options.rounds))
    shown = [
        (
            row["route"],
            row["case"],
            row["bytes"] / 1000,
            str(row["status"]),
            row["held_ms"]["median"],
            row["held_ms"]["max"],
        )
        for row in rows
    ]
    print_table("the loop is held", ("route", "largest in it", "KB", "status", "median ms", "most ms"), shown)
    late = [row for row in rows if row["held_ms"]["median"] > GOAL_MS]
    print(f"{len(rows)} cases; {len(late)} hold the loop for longer than {GOAL_MS:g} ms")
    if not options.quick and not options.routes:
        print(write_report("gateway-held", {"context": CONTEXT, "goal_ms": GOAL_MS, "cases": rows}).name)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
