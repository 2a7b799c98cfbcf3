"""The log: how many generations a second go through join and score, embedded and on Kafka and PostgreSQL.

usage: python -m benchmarks.log [--growth | --profile]

In: records fed straight into the log. Out: a table, and a dated JSON file. Waits: until `episodes` and `rewards`, real
processes, have read everything and every window has closed. What is scored is counted, so that a loss is no speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.log.growth import SIZES, measure_growth
from benchmarks.log.run import LogArm, LogFigures, measure, profile, server_urls
from benchmarks.report import print_table, summarise, write_report

_EMBEDDED = LogArm("embedded", services=False, replicas=1)
_SERVICES = (
    LogArm("Kafka + PostgreSQL", services=True, replicas=1),
    LogArm("the same, 2 replicas", services=True, replicas=2),
)


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    arms = [_EMBEDDED, *(_SERVICES if server_urls() else ())]
    if not server_urls():
        print("MILLRACE_KAFKA and MILLRACE_DATABASE are not set: only embedded is measured (see `make services`)")
    if options.profile:
        for arm in arms[:2]:
            profile(arm, options.generations)
    elif options.growth:
        _report_growth(arms[:2], options)
    else:
        _report_rates(arms, options)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.log", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--generations", type=int, default=10_000, help="fed in each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2,000 generations, one round; writes no file")
    parser.add_argument("--growth", action="store_true", help="time per event while the tables grow to 1,000,000 rows")
    parser.add_argument("--profile", action="store_true", help="where the time of both workers goes")
    options = parser.parse_args(arguments)
    if options.quick:
        options.generations, options.rounds = 2_000, 1
    return options


def _report_rates(arms: Sequence[LogArm], options: argparse.Namespace) -> None:
    samples: dict[str, list[LogFigures]] = {arm.name: [] for arm in arms}
    for number in range(options.rounds):
        for arm in arms:
            figures = measure(arm, options.generations, seed=number)
            samples[arm.name].append(figures)
            print(f"{number + 1}/{options.rounds} {arm.name}: {figures.generations_per_second:,.0f} generations/s")
    result: dict[str, Any] = {
        name: {
            "generations_per_second": summarise([item.generations_per_second for item in found]),
            "events_per_second": summarise([item.events_per_second for item in found]),
            "cpu_ms_per_generation": {
                process: summarise([item.cpu_ms[process] for item in found]) for process in found[0].cpu_ms
            },
            "copies": summarise([item.copies for item in found]),
        }
        for name, found in samples.items()
    }
    columns = ("", "generations/s", "min to max", "events/s", "CPU ms/generation: episodes", "rewards")
    rows = [
        (
            name,
            figures["generations_per_second"]["median"],
            f"{figures['generations_per_second']['min']:,.0f} to {figures['generations_per_second']['max']:,.0f}",
            figures["events_per_second"]["median"],
            f"{figures['cpu_ms_per_generation']['episodes']['median']:.2f}",
            f"{figures['cpu_ms_per_generation']['rewards']['median']:.2f}",
        )
        for name, figures in result.items()
    ]
    print_table(f"Join and score, {options.generations:,} generations", columns, rows)
    if not options.quick:
        print(write_report("log", {"generations": options.generations, "rounds": options.rounds, "arms": result}))


def _report_growth(arms: Sequence[LogArm], options: argparse.Namespace) -> None:
    result = {arm.name: measure_growth(arm, SIZES[:2] if options.quick else SIZES) for arm in arms}
    rows = [
        (name, f"{size:,}", f"{found['median']:.3f}", f"{found['min']:.3f} to {found['max']:.3f}")
        for name, sizes in result.items()
        for size, found in sizes.items()
    ]
    print_table("As the tables grow", ("", "generations held", "ms per event", "min to max"), rows)
    if not options.quick:
        print(write_report("log-growth", {"arms": result}))


if __name__ == "__main__":
    main(sys.argv[1:])
