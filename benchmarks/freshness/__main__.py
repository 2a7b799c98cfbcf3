"""Freshness by stage: from a person's signal to the first answer by a version that learned from it.

usage: python -m benchmarks.freshness HOME

In: a home whose run has ended (tables, log, weight store, and `users.jsonl` of the demo). Out: a table, and a dated JSON
file. Waits: for nothing. Only signals that taught a version which went live are followed; the others are counted. A run
whose users had left by then has no first answers: that stage, and the whole way, are then of fewer signals or missing.
"""

from __future__ import annotations

import argparse
import bisect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.freshness.times import Learned, Times, read_times
from benchmarks.report import percentile, print_table, write_report
from contracts.errors import InvalidSettings, MillraceError
from runtime.settings import load_settings

STAGES = (
    "received to episode closed",
    "closed to scored",
    "scored to trained",
    "trained to version created",
    "created to live",
    "live to first answer",
)
TO_LIVE, TO_ANSWER = "received to live", "received to first answer"


class Way(NamedTuple):
    """When each stage of one signal ended, beginning with its receipt; `answered_at` None if nobody asked after it."""

    received_at: float
    closed_at: float
    scored_at: float
    trained_at: float
    created_at: float
    live_at: float
    answered_at: float | None


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    try:
        settings = load_settings(options.home.resolve())
        times = read_times(settings, options.clients or options.home / "users.jsonl")
        ways = [found for learned in times.learned if (found := follow(learned, times)) is not None]
        if not ways:
            raise InvalidSettings(f"no signal of {options.home} reached a live version: let the run go on for longer")
    except MillraceError as error:
        print(error, file=sys.stderr)
        return 1
    result = stages_of(ways)
    rows = [
        (
            name,
            *(f"{figures[column]:.3f}" for column in ("p50", "p95", "max", "mean")),
            figures["signals"],
            f"{figures['share']:.1%}",
        )
        for name, figures in result.items()
    ]
    title = f"{len(ways)} signals of {times.num_signals} received, {times.num_live} versions went live"
    print_table(title, ("seconds", "p50", "p95", "max", "mean", "signals", "share of the way to live"), rows)
    if not options.quick:
        content = {
            "profile": "embedded" if settings.kafka is None else "services",
            "signals": {"received": times.num_signals, "learned": len(times.learned), "live": len(ways)},
            "versions_live": times.num_live,
            "seconds": result,
        }
        print(write_report("freshness", content))
    return 0


def follow(learned: Learned, times: Times) -> Way | None:
    """The way of one signal; None if no version that contains it ever went live.

    What a refused version learned goes live with the first of its descendants that is accepted: `created_at` is its own
    time, so a refusal shows as time spent on the way to live.
    """
    live = [at for at, version in times.live if learned.version in times.lineage[version]]
    if not live:
        return None
    answers = [at for at, version in times.answers if learned.version in times.lineage.get(version, ())]
    # The pointer moves first and the engine follows: an answer before it is a candidate's, and no user's.
    place = bisect.bisect_left(answers, live[0])
    return Way(
        *learned[:-1],
        created_at=times.created[learned.version],
        live_at=live[0],
        answered_at=answers[place] if place < len(answers) else None,
    )


def stages_of(ways: Sequence[Way]) -> Mapping[str, dict[str, Any]]:
    """Seconds of each stage, to live and to the first answer; a stage that no signal passed is missing.

    Shares are of the means on the way to live, which add up; percentiles do not.
    """
    waits: dict[str, list[float]] = {
        name: [end - start for start, end in ((way[place], way[place + 1]) for way in ways) if start and end]
        for place, name in enumerate(STAGES)
    }
    waits[TO_LIVE] = [way.live_at - way.received_at for way in ways]
    waits[TO_ANSWER] = [way.answered_at - way.received_at for way in ways if way.answered_at is not None]
    whole = sum(waits[TO_LIVE])
    return {
        name: {
            "p50": percentile(values, 0.50),
            "p95": percentile(values, 0.95),
            "max": max(values),
            "mean": sum(values) / len(values),
            "signals": len(values),
            "share": sum(values) / whole,
        }
        for name, values in waits.items()
        if values
    }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.freshness", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("home", type=Path, help="the home of a run that has ended, for example runs/20261121-030332")
    parser.add_argument("--clients", type=Path, help="the clients' list, if it is not HOME/users.jsonl")
    parser.add_argument("--quick", action="store_true", help="writes no file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
