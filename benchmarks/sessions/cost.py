"""What it costs to give a session its own tokens back: calls of agents with and without a session, over the real process `web`.

The engine is a mock that answers at once. Each session is a conversation that grows by an answer of 16 tokens and a question a turn; both
arms send the same messages, and take turns. A linear session is one row: it has one branch, its `first`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.report import percentile, summarise
from contracts.turns import count_rows
from services.inference.engine.http import HttpClient
from tests.worlds.gateway import OK, GatewayWorld, client_of, mock_engine, running
from tests.worlds.paths import EXAMPLE
from tests.worlds.sessions.records import calls_of
from tests.worlds.sessions.users import wide_base
from tests.worlds.sessions.varied_engine import END

GOAL_MS = 1.0
ARMS = ("whole", "session")
_PATH = "/v1/chat/completions"


async def converse(client: HttpClient, session: str | None, turns: int) -> list[float]:
    """One conversation. Returns the seconds of each turn."""
    messages, seconds = [{"role": "system", "content": "Turn the wish into a booking."}], []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"And now a table for {turn} on Friday at half past seven."})
        content: dict[str, Any] = {"model": "gateway", "messages": messages}
        body = json.dumps(content | ({"metadata": {"session_id": session}} if session else {})).encode()
        began = time.perf_counter()
        exchange = await client.begin("POST", _PATH, body)
        try:
            answer = json.loads(await exchange.read_all())
        finally:
            exchange.end()
        seconds.append(time.perf_counter() - began)
        if exchange.status != OK:
            raise RuntimeError(f"turn {turn} of {session} was refused: {answer}")
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return seconds


async def arm(world: GatewayWorld, name: str, sessions: int, turns: int, at_once: int) -> list[float]:
    """Many conversations, `at_once` of them at a time. Returns the seconds of all turns."""
    client, free, seconds = client_of(world.gateway, world.key), asyncio.Semaphore(at_once), list[float]()

    async def one() -> None:
        async with free:
            seconds.extend(await converse(client, uuid.uuid4().hex if name == "session" else None, turns))

    await asyncio.gather(*(one() for _ in range(sessions)))
    client.close()
    return seconds


def run(sessions: int, turns: int, rounds: int, at_once: int) -> dict[str, Any]:
    """The content of the report."""
    with tempfile.TemporaryDirectory() as folder:
        base = wide_base(EXAMPLE / "base", Path(folder) / "base")
        with running(Path(folder) / "home", None, "sessions", engine=mock_engine(end=END), base=base) as world:
            uvloop.run(arm(world, "session", at_once, 3, at_once))  # warm
            taken: dict[str, list[list[float]]] = {name: [] for name in ARMS}
            for _ in range(rounds):
                for name in ARMS:
                    taken[name].append(uvloop.run(arm(world, name, sessions, turns, at_once)))
            counted = count_rows([call.counted for call in calls_of(world.home)])
    figures = {
        name: {
            f"p{round(100 * share)}_ms": summarise([1000 * percentile(each, share) for each in of])
            for share in (0.5, 0.99)
        }
        for name, of in taken.items()
    }
    added = [
        1000 * (percentile(one, 0.5) - percentile(other, 0.5))
        for one, other in zip(taken["session"], taken["whole"], strict=True)
    ]
    return {
        "sessions": sessions,
        "turns": turns,
        "at_once": at_once,
        "arms": figures,
        "added_p50_ms": summarise(added),
        "branches": counted.branches,
        "rows_per_session": counted.rows / (sessions * rounds + at_once),
        "tokens_saved": counted.saved,
        "good": statistics.median(added) < GOAL_MS,
    }
