"""How fast the process `web` is over an engine that costs nothing, with every generation made durable.

Closed loop: requests a second and ms of a core per request at 1, 8 and 32 connections. Open loop: what the gateway adds at 400 requests
a second. The direct arm asks the mock engine itself. A bare uvicorn and, if `deploy/clients` has built it, LiteLLM's proxy
stand beside it; all arms take turns. With `--gap 1` the tokens of an answer arrive one by one, a millisecond apart, as from a
fast engine: each is then a chunk of its own. With MILLRACE_KAFKA set, an arm logs to Kafka. On a machine that others use,
`chrt -r 5 python -m benchmarks.gateway` keeps them out of the figures; the report says that it was so, and how long this disk
takes for an fsync.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks.report import percentile, print_table, summarise, write_report
from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from runtime.settings import load_settings
from tests.worlds.gateway import (
    OK,
    GatewayReply,
    GatewayWorld,
    chat_body,
    client_of,
    closed_loop,
    engine_body,
    mock_engine,
    open_loop,
    running,
)
from tests.worlds.servers.peers import LITELLM, GatewayPeer, in_front_of, running_echo, running_litellm

CONNECTIONS = (1, 8, 32)
RATE, LITELLM_RATE = 400.0, 25.0
"""Requests a second of the open loop. LiteLLM cannot keep up with ours: its queue would grow without end."""
MOST_ADDED = {"p50": 3.0, "p99": 15.0}
"""The target at `RATE`, in ms beyond the engine's own time, in every round."""
_CHAT, _ENGINE = "/v1/chat/completions", "/inference/v1/generate"


class GatewayArm(NamedTuple):
    """Something to ask."""

    name: str
    url: str
    key: str
    path: str
    body: bytes
    process: psutil.Process | None
    rate: float = RATE


def arms_of(worlds: dict[str, GatewayWorld], peers: Sequence[GatewayPeer]) -> list[GatewayArm]:
    """Direct, each gateway and each peer, streaming and not."""
    first = next(iter(worlds.values()))
    arms = [GatewayArm("direct", first.engine, "", _ENGINE, engine_body(), None)]
    for kind, stream in (("plain", False), ("stream", True)):
        body = chat_body(stream)
        for name, world in worlds.items():
            arms.append(GatewayArm(f"{name} {kind}", world.gateway, world.key, _CHAT, body, world.process))
        for peer in peers:
            rate = LITELLM_RATE if peer.name == "litellm" else RATE
            arms.append(GatewayArm(f"{peer.name} {kind}", peer.url, "", _CHAT, body, peer.process, rate))
    return arms


async def measure(arms: Sequence[GatewayArm], rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Samples by arm and figure, one of each for every round. Fails if a request does, or was not logged."""
    figures: dict[str, dict[str, list[float]]] = {arm.name: {} for arm in arms}
    for _ in range(rounds):
        for connections in CONNECTIONS:
            for arm in arms:
                burnt = _cpu_seconds(arm)
                replies = await _closed(arm, connections, seconds)
                burnt = _cpu_seconds(arm) - burnt
                name = f"requests/s at {connections}"
                figures[arm.name].setdefault(name, []).append(len(replies) / seconds)
                figures[arm.name].setdefault(f"p99 ms at {connections}", []).append(_milliseconds(replies, 0.99))
                figures[arm.name].setdefault(f"CPU ms at {connections}", []).append(1000 * burnt / len(replies))
        for arm in arms:
            burnt = _cpu_seconds(arm)
            replies = await _open(arm, seconds)
            burnt = _cpu_seconds(arm) - burnt
            figures[arm.name].setdefault("open: CPU ms", []).append(1000 * burnt / len(replies))
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                figures[arm.name].setdefault(f"open: {name} ms", []).append(_milliseconds(replies, share))
    return figures


def _cpu_seconds(arm: GatewayArm) -> float:
    if arm.process is None:
        return 0.0
    spent = [process.cpu_times() for process in (arm.process, *arm.process.children(recursive=True))]
    return float(sum(times.user + times.system for times in spent))


async def _closed(arm: GatewayArm, connections: int, seconds: float) -> list[GatewayReply]:
    client = client_of(arm.url, arm.key)
    replies = await closed_loop(client, arm.path, arm.body, connections, seconds)
    client.close()
    return _checked(replies)


async def _open(arm: GatewayArm, seconds: float) -> list[GatewayReply]:
    client = client_of(arm.url, arm.key)
    replies = await open_loop(client, arm.path, lambda _number: arm.body, arm.rate, seconds)
    client.close()
    return _checked(replies)


def _checked(replies: list[GatewayReply]) -> list[GatewayReply]:
    if bad := [reply for reply in replies if reply.status != OK or not reply.logged]:
        raise RuntimeError(f"{len(bad)} of {len(replies)} requests failed or were not logged: {bad[0]}")
    return replies


def _milliseconds(replies: Sequence[GatewayReply], share: float) -> float:
    return 1000 * percentile([reply.seconds for reply in replies], share)


def count_logged(home: Path) -> int:
    """Generations on the log of a home, each read and opened."""
    log = load_settings(home).event_log()
    num = 0
    for partition, end in log.ends(GENERATIONS).items():
        offset = 0
        while offset < end:
            records = log.read(GENERATIONS, partition, offset, 1000)
            num += sum(len(decode(Generation, record.value).open().completion_ids) > 0 for record in records)
            offset = records[-1].offset + 1
    log.close()
    return num


def fsync_ms(folder: Path, times: int = 200) -> dict[str, float]:
    """How long this disk takes to make one page durable."""
    samples = []
    with (folder / "page").open("wb") as page:
        for _ in range(times):
            page.write(bytes(4096))
            page.flush()
            started = time.perf_counter()
            os.fsync(page.fileno())
            samples.append(1000 * (time.perf_counter() - started))
    return {"p50": percentile(samples, 0.5), "p99": percentile(samples, 0.99)}


def run(rounds: int, seconds: float, gap: float) -> dict[str, Any]:
    """Everything; the content of the report. `gap`: ms between two tokens."""
    kafka = os.environ.get("MILLRACE_KAFKA")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places: dict[str, str | None] = {"embedded": None} | ({"kafka": kafka} if kafka else {})
        name = f"bench-{uuid.uuid4().hex[:8]}"
        worlds = {
            place: stack.enter_context(running(Path(folder) / place, servers, name, engine=mock_engine(gap)))
            for place, servers in places.items()
        }
        peers = [stack.enter_context(running_echo(Path(folder)))]
        if LITELLM.exists():
            engine = next(iter(worlds.values())).engine
            peers.append(stack.enter_context(running_litellm(in_front_of(engine), Path(folder))))
        arms = arms_of(worlds, peers)
        uvloop.run(measure(arms, 1, 0.5))  # warm
        figures = uvloop.run(measure(arms, rounds, seconds))
        fsync = fsync_ms(Path(folder))
        num_logged = {place: count_logged(world.home) for place, world in worlds.items()}
    return {
        "seconds": seconds,
        "gap_ms": gap,
        "fsync_ms": fsync,
        "requests_per_second": {arm.name: arm.rate for arm in arms},
        "real_time_priority": os.sched_getscheduler(0) in {os.SCHED_RR, os.SCHED_FIFO},
        "arms": {arm: {name: summarise(samples) for name, samples in of.items()} for arm, of in figures.items()},
        "rounds_within_target": {arm.name: _within(figures, arm.name) for arm in arms if arm.process is not None},
        "generations_on_the_log": num_logged,
    }


def _within(figures: dict[str, dict[str, list[float]]], arm: str) -> str:
    """How many rounds of the open loop added no more than `MOST_ADDED` to the direct arm's figure of the same round."""
    rounds = [
        all(
            figures[arm][f"open: {name} ms"][turn] - figures["direct"][f"open: {name} ms"][turn] <= most
            for name, most in MOST_ADDED.items()
        )
        for turn in range(len(figures["direct"]["open: p50 ms"]))
    ]
    return f"{sum(rounds)} of {len(rounds)}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each loop")
    parser.add_argument("--rounds", type=int, default=5, help="five take about eight minutes")
    parser.add_argument("--gap", type=float, default=0.0, help="ms between two tokens of the engine; 0: all at once")
    options = parser.parse_args()
    rounds, seconds = (1, 1.5) if options.quick else (options.rounds, options.seconds)
    report = run(rounds, seconds, options.gap)
    print_report(report)
    if not options.quick:
        print(write_report("gateway-gap" if options.gap else "gateway", report))


def print_report(report: dict[str, Any]) -> None:
    """Medians, and what each arm adds to the engine."""
    arms: dict[str, dict[str, Any]] = report["arms"]
    rows = [
        [
            arm,
            *(f"{figures[f'requests/s at {num}']['median']:,.0f}" for num in CONNECTIONS),
            *(f"{figures[f'CPU ms at {num}']['median']:.2f}" for num in CONNECTIONS),
        ]
        for arm, figures in arms.items()
    ]
    places = [str(num) for num in CONNECTIONS]
    print_table(
        "closed loop", ["connections", *(f"{n}: req/s" for n in places), *(f"{n}: CPU ms" for n in places)], rows
    )
    rows = []
    for arm, figures in arms.items():
        times = [figures[f"open: {name} ms"]["median"] for name in MOST_ADDED]
        added = [
            time - arms["direct"][f"open: {name} ms"]["median"] for name, time in zip(MOST_ADDED, times, strict=True)
        ]
        row = [arm, f"{report['requests_per_second'][arm]:g}", *(f"{time:.2f}" for time in [*times, *added])]
        rows.append([*row, f"{figures['open: CPU ms']['median']:.2f}", report["rounds_within_target"].get(arm, "")])
    columns = ["open loop", "req/s", "p50 ms", "p99 ms", "added p50", "added p99", "CPU ms", "within"]
    print_table("open loop", columns, rows)
    most = " and ".join(f"{name} {value:g} ms" for name, value in MOST_ADDED.items())
    print(f"within: rounds that add at most {most} to the engine's own time")
    print("fsync: {p50:.2f} ms, p99 {p99:.2f} ms".format(**report["fsync_ms"]))
    print("on the log:", report["generations_on_the_log"])


if __name__ == "__main__":
    main()
