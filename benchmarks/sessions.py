"""What it costs to give a session its own tokens back: calls of agents with and without a session, over the real process `web`.

usage: python -m benchmarks.sessions [--sessions N] [--turns N] [--rounds N] [--at-once N] [--json] [--quick]

In: nothing. Out: a table, and a dated file; with --json one object instead. The engine is a mock that answers at once. Each session is a
conversation that grows by an answer of 16 tokens and a question a turn; both arms send the same messages, and take turns. `branches` counts
the records of the log by why their prompt was rendered anew; a linear session has one, its `first`. Memory is what `web` holds (RSS)
after a round of sessions, beside what it held after the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.gateway.world import OK, World, client_of, running
from benchmarks.paths import EXAMPLE
from benchmarks.report import end_with, percentile, print_table, summarise
from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from runtime.settings import load_settings
from services.inference.engine.http import HttpClient

CONTEXT, END = 65_536, 1
"""Tokens, and the id of the token that ends a turn of the example's base policy."""
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


async def arm(world: World, name: str, sessions: int, turns: int, at_once: int) -> list[float]:
    """Many conversations, `at_once` of them at a time. Returns the seconds of all turns."""
    client, free, seconds = client_of(world.gateway, world.key), asyncio.Semaphore(at_once), list[float]()

    async def one() -> None:
        async with free:
            seconds.extend(await converse(client, uuid.uuid4().hex if name == "session" else None, turns))

    await asyncio.gather(*(one() for _ in range(sessions)))
    client.close()
    return seconds


def branches(home: Path) -> dict[str, int]:
    """The log's generations of sessions by the reason of their branch; `extended` without."""
    log, found = load_settings(home).event_log(), Counter[str]()
    for partition, end in log.ends(GENERATIONS).items():
        offset = 0
        while offset < end:
            records = log.read(GENERATIONS, partition, offset, 1000)
            read = [decode(Generation, record.value) for record in records]
            found.update(record.turn.branch or "extended" for record in read if record.turn)
            offset = records[-1].offset + 1
    log.close()
    return dict(found)


def run(sessions: int, turns: int, rounds: int, at_once: int) -> dict[str, Any]:
    """The content of the report."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        shutil.copytree(EXAMPLE / "base", base)
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
        with running(Path(folder) / "home", None, "sessions", base=base, end=END) as world:
            uvloop.run(arm(world, "session", at_once, 3, at_once))  # warm
            taken: dict[str, list[list[float]]] = {name: [] for name in ARMS}
            memory = []
            for _ in range(rounds):
                for name in ARMS:
                    taken[name].append(uvloop.run(arm(world, name, sessions, turns, at_once)))
                memory.append(world.process.memory_info().rss / 2**20)
            found = branches(world.home)
    figures = {
        name: {
            f"p{round(100 * share)}_ms": summarise([1000 * percentile(each, share) for each in of])
            for share in (0.5, 0.99)
        }
        for name, of in taken.items()
    }
    rows = sum(count for branch, count in found.items() if branch != "extended")
    return {
        "sessions": sessions,
        "turns": turns,
        "at_once": at_once,
        "arms": figures,
        "added_p50_ms": figures["session"]["p50_ms"]["median"] - figures["whole"]["p50_ms"]["median"],
        "branches": found,
        "rows_per_session": rows / (sessions * rounds + at_once),
        "web_mib": memory,
    }


def show(figures: dict[str, Any]) -> None:
    """For a person."""
    rows = [(name, *(of[key]["median"] for key in ("p50_ms", "p99_ms"))) for name, of in figures["arms"].items()]
    title = f"{figures['sessions']} sessions of {figures['turns']} turns, {figures['at_once']} at once"
    print_table(title, ["prompt", "p50 ms", "p99 ms"], rows)
    print(f"added p50: {figures['added_p50_ms']:.2f} ms; rows per session: {figures['rows_per_session']:.2f}")
    print(f"branches: {figures['branches']}; web: {' '.join(f'{mib:.0f}' for mib in figures['web_mib'])} MiB by round")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=100, help="of each arm and round")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--quick", action="store_true", help="seconds: shows that everything runs")
    options = parser.parse_args()
    sessions, turns, rounds = (2, 4, 1) if options.quick else (options.sessions, options.turns, options.rounds)
    return end_with(run(sessions, turns, rounds, options.at_once), options, show, "sessions")


if __name__ == "__main__":
    sys.exit(main())
