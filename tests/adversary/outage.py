"""Kafka is away for minutes at 100 requests a second: no client notices, nothing is lost, and the spool drains soon after.

Stops (or, with --freeze, suspends) the broker that `deploy/services start` started under MILLRACE_SERVICES, which must be
set to a folder of this benchmark's own, so that nothing else is hit by the outage.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks.report import percentile, print_table, write_report
from contracts.ids import sample_key
from contracts.topics import GENERATIONS
from runtime.settings import load_settings
from tests.worlds.gateway import OK, GatewayReply, GatewayWorld, chat_body, client_of, open_loop, running
from tests.worlds.paths import ROOT

RATE = 100.0
_LONGEST_SECONDS = 300.0
"""For the broker to come back, and for the spool to drain."""
_BEFORE_SECONDS, _AFTER_SECONDS = 15.0, 45.0
_SAMPLE_SECONDS = 0.5
_SERVICES = ROOT / "deploy" / "services"
_CHAT = "/v1/chat/completions"


class OutageSample(NamedTuple):
    """The gateway at one moment."""

    at: float
    num_spooled: int
    spool_bytes: int
    resident: int


class Broker:
    """The broker of MILLRACE_SERVICES."""

    def __init__(self, folder: Path, *, freeze: bool) -> None:
        self._pid = folder / "kafka" / "pid"
        self._freeze = freeze

    def leave(self) -> None:
        """Until `come_back`."""
        broker = psutil.Process(int(self._pid.read_text()))
        if self._freeze:
            broker.suspend()
        else:
            broker.terminate()
            broker.wait(30)

    def come_back(self) -> None:
        """Serving again when it returns."""
        if self._freeze:
            psutil.Process(int(self._pid.read_text())).resume()
        subprocess.run([_SERVICES, "start", "kafka"], check=True, capture_output=True)  # noqa: S603 our own script


class OutageRun(NamedTuple):
    """The measurements of a run. Times are from `time.monotonic`."""

    replies: list[GatewayReply]
    samples: list[OutageSample]
    away_at: float
    back_at: float


class Phases(NamedTuple):
    """How long each lasts, in seconds. `after`: of requests since the broker is back; the spool may take longer to drain."""

    before: float
    during: float
    after: float


async def measure(world: GatewayWorld, broker: Broker, phases: Phases, rate: float) -> OutageRun:
    """Before, during and after an outage."""
    client = client_of(world.gateway, world.key)
    bodies = [chat_body(stream=False), chat_body(stream=True)]
    enough = asyncio.Event()
    longest = sum(phases) + _LONGEST_SECONDS
    asking = asyncio.create_task(
        open_loop(client, _CHAT, lambda number: bodies[number % 2], rate, longest, enough=enough)
    )
    samples: list[OutageSample] = []
    sampling = asyncio.create_task(_sample(world, samples))
    await asyncio.sleep(phases.before)
    away_at = time.monotonic()
    await asyncio.to_thread(broker.leave)
    await asyncio.sleep(phases.during)
    await asyncio.to_thread(broker.come_back)
    back_at = time.monotonic()
    await asyncio.sleep(phases.after)
    enough.set()
    replies = await asking
    asked_at = time.monotonic()
    while (last := samples[-1]).at < asked_at or (last.num_spooled and last.at < asked_at + _LONGEST_SECONDS):  # noqa: ASYNC110 samples come at a steady pace
        await asyncio.sleep(_SAMPLE_SECONDS)
    sampling.cancel()
    client.close()
    return OutageRun(replies, samples, away_at, back_at)


async def _sample(world: GatewayWorld, samples: list[OutageSample]) -> None:
    while True:
        samples.append(await asyncio.to_thread(_look, world))
        await asyncio.sleep(_SAMPLE_SECONDS)


def _look(world: GatewayWorld) -> OutageSample:
    spool = world.home / "spool"
    with closing(sqlite3.connect(f"file:{spool / '0.db'}?mode=ro", uri=True)) as connection:
        # An emptied file is truncated, and has no table until it was made again.
        [tables] = connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'waiting'").fetchone()
        [num] = connection.execute("SELECT COUNT(*) FROM waiting").fetchone() if tables else (0,)
    num_bytes = sum(path.stat().st_size for path in spool.glob("*.db*"))
    return OutageSample(time.monotonic(), num, num_bytes, world.process.memory_info().rss)


def keys_on_the_log(home: Path) -> Counter[str]:
    """How often each generation is on the log."""
    log, found = load_settings(home).event_log(), Counter[str]()
    for partition, end in log.ends(GENERATIONS).items():
        offset = 0
        while offset < end and (records := log.read(GENERATIONS, partition, offset, 1000)):
            found.update(record.key for record in records)
            offset = records[-1].offset + 1
    log.close()
    return found


def figures_of(run: OutageRun, found: Counter[str], others: set[str]) -> dict[str, Any]:
    """The report. `others` are keys that were there before."""
    told = {sample_key(reply.id, 0) for reply in run.replies if reply.status == OK}
    phases = {
        "before": [reply for reply in run.replies if reply.at < run.away_at],
        "during": [reply for reply in run.replies if run.away_at <= reply.at < run.back_at],
        "after": [reply for reply in run.replies if reply.at >= run.back_at],
    }
    drained = [sample.at for sample in run.samples if sample.at >= run.back_at and sample.num_spooled == 0]
    resident = [sample.resident for sample in run.samples]
    return {
        "requests": len(run.replies),
        "not_2xx": sum(reply.status != OK for reply in run.replies),
        "not_logged": sum(not reply.logged for reply in run.replies),
        "outage_seconds": run.back_at - run.away_at,
        "drain_seconds": drained[0] - run.back_at if drained else None,
        "lost": len(told - found.keys()),
        "unknown": len(found.keys() - told - others),
        "written_more_than_once": sum(count > 1 for count in found.values()),
        "spool_peak_records": max(sample.num_spooled for sample in run.samples),
        "spool_peak_mib": max(sample.spool_bytes for sample in run.samples) / 2**20,
        "spool_end_mib": run.samples[-1].spool_bytes / 2**20,
        "memory_before_mib": resident[0] / 2**20,
        "memory_growth_mib": (max(resident) - resident[0]) / 2**20,
        "milliseconds": {name: _latency(replies) for name, replies in phases.items()},
    }


def _latency(replies: Sequence[GatewayReply]) -> dict[str, float]:
    seconds = [reply.seconds for reply in replies]
    return {name: 1000 * percentile(seconds, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


@contextmanager
def a_gateway(folder: Path) -> Iterator[GatewayWorld]:
    """A gateway on the broker of a folder, which is where `deploy/services` has its servers."""
    ports = dict(line.split("=") for line in (folder / "ports").read_text().split())
    servers, name = f"127.0.0.1:{ports['KAFKA_PORT']}", f"outage-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as home, running(Path(home), servers, name) as world:
        yield world


def an_outage(world: GatewayWorld, folder: Path, phases: Phases, *, freeze: bool, rate: float = RATE) -> dict[str, Any]:
    """The content of the report. `folder`: see `a_gateway`; `rate`: requests per second."""
    others = set(keys_on_the_log(world.home))
    seen = uvloop.run(measure(world, Broker(folder, freeze=freeze), phases, rate))
    found = keys_on_the_log(world.home)
    return {"rate": rate, "kind": "frozen" if freeze else "stopped", **figures_of(seen, found, others)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of the outage")
    parser.add_argument("--freeze", action="store_true", help="suspend the broker instead of stopping it")
    parser.add_argument("--quick", action="store_true", help="an outage of 15 seconds; nothing is written")
    options = parser.parse_args()
    folder = os.environ.get("MILLRACE_SERVICES")
    if folder is None:
        parser.error("set MILLRACE_SERVICES to an empty folder: this stops the broker that is started there")
    subprocess.run([_SERVICES, "start"], check=True)  # noqa: S603 our own script
    phases = Phases(_BEFORE_SECONDS, 15.0 if options.quick else options.seconds, _AFTER_SECONDS)
    with a_gateway(Path(folder)) as world:
        report = an_outage(world, Path(folder), phases, freeze=options.freeze)
    latency = report["milliseconds"]
    print_table(
        f"Kafka {report['kind']}", ["phase", "p50 ms", "p99 ms", "max ms"],
        [[name, *of.values()] for name, of in latency.items()],
    )  # fmt: skip
    for name, value in report.items():
        if name != "milliseconds":
            print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")
    if not options.quick:
        print(write_report(f"outage-{report['kind']}", report))


if __name__ == "__main__":
    main()
