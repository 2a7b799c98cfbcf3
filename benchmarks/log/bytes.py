"""What a generation costs on its way through the log: bytes of each topic, time of a core, statements.

usage: python -m benchmarks.log.bytes [--tokens 60 2000] [--at-once 0 20 1] [--beside FOLDER]

In: a feed. Out: tables, and a dated JSON file. `--beside`: a checkout of another commit with this `benchmarks/log` in it; both are
measured in turn, each in a process of its own. A *head* is everything that the topics hold but one copy of the body: in values of
records, and on Kafka also in *stored* bytes, the files of the broker with keys and envelopes.

What the broker stores depends on how many records travel together. Generations and signals are appended one by one, as inference and
feedback do when they have one request at a time. `--at-once` says how many of them the workers then find.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine, event, func, select

from benchmarks.log.run import LogArm, LogWorld, a_world, drain, server_urls, workers
from benchmarks.report import print_table, summarise, write_report
from contracts.records import Generation, decode
from contracts.tables import generation
from contracts.topics import GENERATIONS, TOPICS
from tests.worlds.feed import a_feed
from tests.worlds.paths import ROOT

_PAGE = 1_000
_WARM_UP = 200
_MOST_DRAINS = 100


def measure(arm: LogArm, num_generations: int, num_tokens: int, seed: int, at_once: int) -> dict[str, float]:
    """Feed, drain with both workers in this process, and count; every figure is per generation.

    `at_once`: messages that are fed before they are drained; 0: all of them. Else at most a hundred times as many generations are fed.
    """
    statements: list[None] = []
    num_generations = min(num_generations, at_once * _MOST_DRAINS or num_generations)
    with a_world(arm) as world:
        running = workers(world)
        world.append(a_feed(_WARM_UP, seed=-1, num_tokens=num_tokens))
        drain(world, running)
        before = _bytes(world)
        feed = a_feed(num_generations, seed, num_tokens)

        def note(*_: object) -> None:
            statements.append(None)

        event.listen(Engine, "before_cursor_execute", note)
        appending = cpu = seconds = 0.0
        for start in range(0, len(feed), at_once or len(feed)):
            begun_at = time.process_time()
            for item in feed[start : start + (at_once or len(feed))]:
                world.append([item])
            fed_at = time.process_time()
            seconds += drain(world, running)
            appending, cpu = appending + fed_at - begun_at, cpu + time.process_time() - fed_at
        event.remove(Engine, "before_cursor_execute", note)
        found = {name: value - before[name] for name, value in _bytes(world).items()}
        with world.database.snapshot() as connection:
            row = connection.execute(select(func.avg(func.length(generation.c.record)))).scalar_one()
    found["head"] = sum(found[topic] for topic in TOPICS) - found["body"]
    if arm.services:
        found["stored head"] = sum(found[f"stored {topic}"] for topic in TOPICS) - found["body"]
    per_generation = {name: value / num_generations for name, value in found.items()}
    return per_generation | {
        "row": float(row),
        "statements": len(statements) / num_generations,
        "wall_ms": seconds * 1000 / num_generations,
        "cpu_ms": cpu * 1000 / num_generations,
        "feeding_cpu_ms": appending * 1000 / num_generations,
    }


def _bytes(world: LogWorld) -> dict[str, int]:
    found = dict.fromkeys((*TOPICS, "body"), 0)
    for topic in TOPICS:
        for partition, end in world.log.ends(topic).items():
            offset = 0
            while offset < end and (records := world.log.read(topic, partition, offset, _PAGE)):
                found[topic] += sum(len(record.value) for record in records)
                if topic == GENERATIONS:
                    found["body"] += sum(len(decode(Generation, record.value).body) for record in records)
                offset = records[-1].offset + 1
    return found | _stored(world)


def _stored(world: LogWorld) -> dict[str, int]:
    """Bytes of the files that the broker has of each topic; empty for the embedded log."""
    if world.settings.kafka is None:
        return {}
    from kafka import KafkaAdminClient  # noqa: PLC0415 only where there is a Kafka

    admin = KafkaAdminClient(bootstrap_servers=world.settings.kafka)
    names = {f"{world.settings.prefix}{topic}": f"stored {topic}" for topic in TOPICS}
    found = dict.fromkeys(names.values(), 0)
    for broker in admin.describe_log_dirs():
        for folder in broker["log_dirs"]:
            for topic in folder["topics"]:
                if name := names.get(topic["name"]):
                    found[name] += sum(part["partition_size"] for part in topic["partitions"])
    admin.close()
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log.bytes", description=str(__doc__).split("\n")[0])
    parser.add_argument("--generations", type=int, default=2_000, help="fed in each run")
    parser.add_argument("--tokens", type=int, nargs="+", default=[60, 2_000], help="of a generation, prompt included")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[0], help="messages between two drains; 0: all")
    parser.add_argument("--beside", type=Path, help="a checkout of another commit")
    parser.add_argument("--one", type=int, metavar="SEED", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    cases = [("embedded", tokens, 0) for tokens in options.tokens]
    if server_urls():
        cases += [("servers", tokens, at_once) for at_once in options.at_once for tokens in options.tokens]
    if options.one is not None:
        found = [
            measure(LogArm(arm, arm == "servers", 1), options.generations, tokens, options.one, at_once)
            for arm, tokens, at_once in cases
        ]
        print(json.dumps(found))
        return
    trees = {"before": options.beside.resolve()} if options.beside else {}
    trees["after"] = ROOT
    samples: dict[str, list[dict[str, float]]] = {}
    for seed in range(options.rounds):
        for name, tree in trees.items():
            for (arm, tokens, at_once), figures in zip(cases, _run(tree, options, seed), strict=True):
                case = f"{arm}, {tokens} tokens, {f'{at_once} at once' if at_once else 'all at once'}, {name}"
                samples.setdefault(case, []).append(figures)
                print(f"{seed + 1}/{options.rounds} {case}: {figures['cpu_ms']:.2f} ms", flush=True)
    result = {
        name: {key: summarise([item[key] for item in found]) for key in found[0]} for name, found in samples.items()
    }
    _print(result)
    settings = {"generations": options.generations, "rounds": options.rounds, "at_once": options.at_once}
    print(write_report("log-bytes", settings | {"arms": result}))


def _print(result: dict[str, dict[str, dict[str, float]]]) -> None:
    times = ("cpu_ms", "feeding_cpu_ms", "wall_ms")
    columns = ("", "head", *TOPICS, "row", "statements", "CPU ms", "CPU ms of feeding", "ms on the clock")
    rows = [
        (
            name,
            *(f"{figures[key]['median']:,.0f}" for key in ("head", *TOPICS, "row")),
            f"{figures['statements']['median']:.3f}",
            *(
                f"{figures[key]['median']:.2f} ({figures[key]['min']:.2f} to {figures[key]['max']:.2f})"
                for key in times
            ),
        )
        for name, figures in result.items()
    ]
    print_table("Bytes and time of a generation, join and reward", columns, rows)
    stored = ("stored head", *(f"stored {topic}" for topic in TOPICS))
    rows = [
        (
            name,
            *(
                f"{figures[key]['median']:,.0f} ({figures[key]['min']:,.0f} to {figures[key]['max']:,.0f})"
                for key in stored
            ),
        )
        for name, figures in result.items()
        if stored[0] in figures
    ]
    if rows:
        print_table("Bytes of a generation that the broker stores; body included where it is", ("", *stored), rows)


def _run(tree: Path, options: argparse.Namespace, seed: int) -> list[dict[str, float]]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.log.bytes",
        "--one",
        str(seed),
        "--at-once",
        *map(str, options.at_once),
    ]
    command += ["--generations", str(options.generations), "--tokens", *map(str, options.tokens)]
    done = subprocess.run(  # noqa: S603 our own module
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"a run of {tree} ended with {done.returncode}: {done.stderr[-3000:]}")
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
