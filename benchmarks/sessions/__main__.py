"""Sessions: what they cost the serving API, what it holds, what swaps do to them, and what the engine keeps for them.

    python -m benchmarks.sessions cost              what a session adds to a call; the goal is a p50 below 1 ms
    python -m benchmarks.sessions memory            1,000 sessions at once for minutes, while what is kept expires
    python -m benchmarks.sessions swaps             weights of the real engine swapped in the middle of sessions of 50 turns
    python -m benchmarks.sessions prefix            50 turns with kept prefixes and without, on an engine in this process

Prints figures and writes a dated file; with --json one object instead. Exits with 1 if a goal was missed or anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.report import end_with, print_table


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parse(arguments)
    figures = _run(options)
    status = end_with(figures, options, _show, f"sessions-{options.subject}")
    return status if figures["good"] else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print one object")
    shared.add_argument("--quick", action="store_true", help="seconds: shows that everything runs; nothing is written")
    subjects = parser.add_subparsers(dest="subject", required=True)
    cost = subjects.add_parser("cost", parents=[shared], help="calls with and without a session")
    cost.add_argument("--sessions", type=int, default=100, help="of each arm and round")
    cost.add_argument("--turns", type=int, default=50)
    cost.add_argument("--rounds", type=int, default=5)
    cost.add_argument("--at-once", type=int, default=1)
    memory = subjects.add_parser("memory", parents=[shared], help="many sessions at once")
    memory.add_argument("--sessions", type=int, default=1000, help="at once")
    memory.add_argument("--turns", type=int, default=10)
    memory.add_argument("--pause", type=float, default=8.0, help="seconds between two turns of a session, at the mean")
    memory.add_argument("--seconds", type=float, default=480.0)
    swaps = subjects.add_parser("swaps", parents=[shared], help="swaps of weights under sessions")
    swaps.add_argument("--versions", type=int, default=8, help="beside the base")
    swaps.add_argument("--swaps", type=int, default=100)
    swaps.add_argument("--turns", type=int, default=50)
    swaps.add_argument("--at-once", type=int, default=4)
    prefix = subjects.add_parser("prefix", parents=[shared], help="what kept prefixes save")
    prefix.add_argument("--rounds", type=int, default=5)
    prefix.add_argument("--turns", type=int, default=50)
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    quick = options.quick
    if options.subject == "cost":
        from benchmarks.sessions import cost  # noqa: PLC0415 only what is measured

        sessions, turns, rounds = (2, 4, 1) if quick else (options.sessions, options.turns, options.rounds)
        return cost.run(sessions, turns, rounds, options.at_once)
    if options.subject == "memory":
        from benchmarks.sessions import memory  # noqa: PLC0415 as above

        sessions, pause, seconds = (50, 0.5, 20.0) if quick else (options.sessions, options.pause, options.seconds)
        return memory.run(sessions, options.turns, pause, seconds)
    if options.subject == "prefix":
        from benchmarks.sessions import prefix  # noqa: PLC0415 as above

        return prefix.run(*((2, 4) if quick else (options.rounds, options.turns)))
    from benchmarks.sessions import swaps  # noqa: PLC0415 as above

    versions, num, turns, at_once = (
        (2, 3, 6, 2) if quick else (options.versions, options.swaps, options.turns, options.at_once)
    )
    return swaps.run(versions, num, at_once, turns)


def _show(figures: dict[str, Any]) -> None:
    print_table("sessions", ["", ""], [(name, _told(value)) for name, value in figures.items() if name != "samples"])


def _told(value: Any) -> str:
    """Samples as their median and range."""
    if not isinstance(value, dict):
        return f"{value:,.2f}" if isinstance(value, float) else str(value)
    if "samples" in value:
        return f"{value['median']:,.2f} ({value['min']:,.2f} to {value['max']:,.2f})"
    return ", ".join(f"{name} {_told(inner)}" for name, inner in value.items())


if __name__ == "__main__":
    sys.exit(main())
