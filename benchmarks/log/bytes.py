"""What a generation costs on its way through the log: bytes of each topic, time of a core, statements.

usage: python -m benchmarks.log.bytes [--tokens 60 2000] [--beside FOLDER]

In: a feed. Out: a table, and a dated JSON file. `--beside`: a checkout of another commit with this `benchmarks/log` in it; both are
measured in turn, each in a process of its own. A *head* is everything that the topics hold but one copy of the body.
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

from benchmarks.log.feed import a_feed
from benchmarks.log.run import Arm, World, a_world, drain, server_urls, workers
from benchmarks.paths import ROOT
from benchmarks.report import print_table, summarise, write_report
from contracts.records import Generation, decode
from contracts.tables import generation
from contracts.topics import GENERATIONS, TOPICS

_PAGE = 1_000
_WARM_UP = 200


def measure(arm: Arm, num_generations: int, num_tokens: int, seed: int) -> dict[str, float]:
    """Feed, drain with both workers in this process, and count; every figure is per generation."""
    statements: list[None] = []
    with a_world(arm) as world:
        running = workers(world)
        world.append(a_feed(_WARM_UP, seed=-1, num_tokens=num_tokens))
        drain(world, running)
        before = _bytes(world)
        world.append(a_feed(num_generations, seed, num_tokens))

        def note(*_: object) -> None:
            statements.append(None)

        event.listen(Engine, "before_cursor_execute", note)
        cpu = time.process_time()
        seconds = drain(world, running)
        cpu = time.process_time() - cpu
        event.remove(Engine, "before_cursor_execute", note)
        found = {name: value - before[name] for name, value in _bytes(world).items()}
        with world.database.snapshot() as connection:
            row = connection.execute(select(func.avg(func.length(generation.c.record)))).scalar_one()
    found["head"] = sum(found[topic] for topic in TOPICS) - found["body"]
    per_generation = {name: value / num_generations for name, value in found.items()}
    return per_generation | {
        "row": float(row),
        "statements": len(statements) / num_generations,
        "wall_ms": seconds * 1000 / num_generations,
        "cpu_ms": cpu * 1000 / num_generations,
    }


def _bytes(world: World) -> dict[str, int]:
    found = dict.fromkeys((*TOPICS, "body"), 0)
    for topic in TOPICS:
        for partition, end in world.log.ends(topic).items():
            offset = 0
            while offset < end and (records := world.log.read(topic, partition, offset, _PAGE)):
                found[topic] += sum(len(record.value) for record in records)
                if topic == GENERATIONS:
                    found["body"] += sum(len(decode(Generation, record.value).body) for record in records)
                offset = records[-1].offset + 1
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log.bytes", description=str(__doc__).split("\n")[0])
    parser.add_argument("--generations", type=int, default=2_000, help="fed in each run")
    parser.add_argument("--tokens", type=int, nargs="+", default=[60, 2_000], help="of a generation, prompt included")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="a checkout of another commit")
    parser.add_argument("--one", type=int, metavar="SEED", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    cases = [
        (arm, tokens) for arm in ("embedded", *(["servers"] if server_urls() else [])) for tokens in options.tokens
    ]
    if options.one is not None:
        found = [
            measure(Arm(arm, arm == "servers", 1), options.generations, tokens, options.one) for arm, tokens in cases
        ]
        print(json.dumps(found))
        return
    trees = {"before": options.beside.resolve()} if options.beside else {}
    trees["after"] = ROOT
    samples: dict[str, list[dict[str, float]]] = {
        f"{arm}, {tokens} tokens, {name}": [] for arm, tokens in cases for name in trees
    }
    for seed in range(options.rounds):
        for name, tree in trees.items():
            for (arm, tokens), figures in zip(
                cases, _run(tree, [*map(str, options.tokens)], options.generations, seed), strict=True
            ):
                samples[f"{arm}, {tokens} tokens, {name}"].append(figures)
                print(
                    f"{seed + 1}/{options.rounds} {arm}, {tokens} tokens, {name}: {figures['cpu_ms']:.2f} ms",
                    flush=True,
                )
    result = {
        name: {key: summarise([item[key] for item in found]) for key in found[0]} for name, found in samples.items()
    }
    columns = ("", "head", *TOPICS, "row", "statements", "CPU ms", "ms on the clock")
    shown = ("head", *TOPICS, "row")
    rows = [
        (
            name,
            *(f"{figures[key]['median']:,.0f}" for key in shown),
            f"{figures['statements']['median']:.3f}",
            *(f"{figures[key]['median']:.2f} ({figures[key]['min']:.2f} to {figures[key]['max']:.2f})"
              for key in ("cpu_ms", "wall_ms")),
        )
        for name, figures in result.items()
    ]  # fmt: skip
    print_table("Bytes and time of a generation, join and reward", columns, rows)
    print(write_report("log-bytes", {"generations": options.generations, "rounds": options.rounds, "arms": result}))


def _run(tree: Path, tokens: list[str], num_generations: int, seed: int) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.log.bytes", "--generations", str(num_generations), "--tokens", *tokens]
    done = subprocess.run(  # noqa: S603 our own module
        [*command, "--one", str(seed)], cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
