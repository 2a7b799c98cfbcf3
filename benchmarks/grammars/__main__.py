"""What one tenant's slow schemas cost the structured output of others, over the real gateway and engine.

usage: python -m benchmarks.grammars [--seconds 60] [--name after]

In: two tenants. One asks, all the time, for an answer under a schema that is known, for a tool call that is forced, and for one under
a small schema that is new. The other one does nothing (`quiet`); sends six schemas that compile for minutes, leaves each after a
quarter of a second, and goes on so with twelve a minute (`leaves`); or sends twelve a minute and stays (`stays`). Out: a table of
milliseconds per request, and a dated file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import percentile, print_table, write_report
from commands.home import prepare_home
from contracts.keys import create_key
from runtime.settings import Settings
from tests.worlds.paths import ROOT
from tests.worlds.processes import free_port, process

SUPPORT = ROOT / "examples" / "support"
PHASES = ("quiet", "leaves", "stays")
_START_SECONDS, _WARM_SECONDS, _PAUSE, _LEAVE_SECONDS = 120.0, 3.0, 0.25, 0.25
_FIRST, _EVERY_SECONDS = 6, 5.0
_SENT_TWICE = range(2)
_OK = 200
_MESSAGES = [{"role": "user", "content": "my lamp came broken"}]
_TOOL = {"type": "object", "properties": {"order": {"type": "string", "maxLength": 4}}, "required": ["order"]}
_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": _TOOL}}]
_SLOW = {"type": "string", "allOf": [{"pattern": f"[{chr(97 + place)}0].{{{place}}}$"} for place in range(24)]}
"""It takes minutes, under a few hundred bytes."""
Samples = dict[str, dict[str, list[tuple[int, float]]]]
"""Phase and kind of request to status and milliseconds of each."""


def main(arguments: Sequence[str]) -> None:
    """Measure every phase."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grammars")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--name", default="", help="of the dated file, behind `grammars-`")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, _running(Path(folder) / "home") as (url, keys):
        samples, answers = asyncio.run(_measure(url, keys, options.seconds))
    figures = {phase: {kind: _summary(found) for kind, found in kinds.items()} for phase, kinds in samples.items()}
    rows = [
        (phase, kind, *(found[name] for name in ("p50", "p99", "max")), str(found["num"]), str(found["failed"]))
        for phase, kinds in figures.items()
        for kind, found in kinds.items()
    ]
    print_table(
        "another tenant's requests", ("the attacker", "kind", "p50 ms", "p99 ms", "max ms", "requests", "failed"), rows
    )
    print(f"what the attacker got: {answers}")
    name = "-".join(["grammars", *([options.name] if options.name else [])])
    print(write_report(name, {"seconds": options.seconds, "ms": figures, "attacker": answers}))


def _summary(found: Sequence[tuple[int, float]]) -> dict[str, Any]:
    times = [milliseconds for _, milliseconds in found]
    return {
        "p50": round(percentile(times, 0.5), 1),
        "p99": round(percentile(times, 0.99), 1),
        "max": round(max(times), 1),
        "num": len(found),
        "failed": sum(status != _OK for status, _ in found),
    }


async def _measure(url: str, keys: dict[str, str], seconds: float) -> tuple[Samples, dict[str, dict[str, int]]]:
    samples: Samples = {phase: defaultdict(list) for phase in PHASES}
    answers: dict[str, Counter[str]] = {phase: Counter() for phase in PHASES}
    numbers = itertools.count()
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "known schema": lambda: _schema({"type": "boolean"}),
        "forced call": lambda: {"tools": _TOOLS, "tool_choice": "required"},
        "new small schema": lambda: _schema({"enum": ["yes", "no", f"number {next(numbers)}"]}),
    }
    async with _client(url, keys["other"]) as other, _client(url, keys["attacker"]) as attacker:
        await _until_it_answers(other)
        for warm_up in _SENT_TWICE:  # the first one starts the processes that compile
            for fields in kinds.values():
                await _ask(other, fields())
            await asyncio.sleep(0.0 if warm_up else _WARM_SECONDS)
        for phase in PHASES:
            attacking = asyncio.create_task(_attack(attacker, phase, numbers, answers[phase]))
            until = time.monotonic() + seconds
            await asyncio.gather(
                *(_ask_again(other, fields, samples[phase][kind], until) for kind, fields in kinds.items())
            )
            attacking.cancel()
            await asyncio.wait({attacking})
    return samples, {phase: dict(found) for phase, found in answers.items()}


async def _attack(client: httpx.AsyncClient, phase: str, numbers: Iterator[int], answers: Counter[str]) -> None:
    if phase == "quiet":
        return
    patience = _LEAVE_SECONDS if phase == "leaves" else 60.0
    async with asyncio.TaskGroup() as asking:
        for place in itertools.count():
            fields = _schema(_SLOW, f"a{next(numbers)}")
            asking.create_task(_bomb(client, fields, patience, answers))
            if phase == "stays" or place >= _FIRST:
                await asyncio.sleep(_EVERY_SECONDS)


async def _bomb(client: httpx.AsyncClient, fields: dict[str, Any], patience: float, answers: Counter[str]) -> None:
    try:
        answer = await client.post("/v1/chat/completions", json=_body(fields), timeout=patience)
    except httpx.TimeoutException:
        answers["left"] += 1
    else:
        answers[str(answer.status_code)] += 1


async def _ask_again(
    client: httpx.AsyncClient, fields: Callable[[], dict[str, Any]], found: list[tuple[int, float]], until: float
) -> None:
    while time.monotonic() < until:
        found.append(await _ask(client, fields()))
        await asyncio.sleep(_PAUSE)


async def _ask(client: httpx.AsyncClient, fields: dict[str, Any]) -> tuple[int, float]:
    """Status and milliseconds of one request."""
    started = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=_body(fields))
    return answer.status_code, 1000 * (time.perf_counter() - started)


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "support", "messages": _MESSAGES, "max_tokens": 6, "store": False, **fields}


def _schema(schema: dict[str, Any], name: str = "a") -> dict[str, Any]:
    whole = {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "asked", "schema": whole}}}


@asynccontextmanager
async def _client(url: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=_START_SECONDS
    ) as client:
        yield client


async def _until_it_answers(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if (await _ask(client, {}))[0] == _OK:
                return
        await asyncio.sleep(0.2)
    raise TimeoutError("gateway and engine do not answer")


@contextmanager
def _running(home: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Engine and gateway in a new home; the gateway's URL, and a key of each tenant."""
    settings = Settings(
        home=home, run="grammars", policy="support", base=str(SUPPORT / "base"), tasks=(SUPPORT / "task.toml",),
        web_port=free_port(), engine_port=free_port(), requests_per_minute=0,
    )  # fmt: skip
    prepare_home(settings, {})
    database = settings.database()
    with database.transaction() as connection:
        keys = {tenant: create_key(connection, "app", tenant) for tenant in ("attacker", "other")}
    database.close()
    with (
        process([str(ROOT / "millrace.py"), "engine", "--home", str(home)]),
        process([str(ROOT / "millrace.py"), "web", "--home", str(home)]),
    ):
        yield settings.web_url, keys


if __name__ == "__main__":
    main(sys.argv[1:])
