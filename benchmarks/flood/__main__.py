"""A flood of signals about a few answers: what one signal costs the join, and what others and the control plane notice.

usage: python -m benchmarks.flood [--one] [--signals N] [--answers N] [--rate N] [--services]

In: nothing. Out: tables, and a dated JSON file. Waits: until every signal was joined or rejected. Workers, writer and relay are the real
ones in processes of their own; without HTTP, so that a small machine can make the flood. 30,000 signals a minute are one key's limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.flood.one import SIZES, cost_of_one
from benchmarks.flood.run import flood
from benchmarks.log.run import LogArm, server_urls
from benchmarks.report import write_report

_EMBEDDED, _SERVERS = LogArm("SQLite", services=False, replicas=1), LogArm("PostgreSQL", services=True, replicas=1)


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flood", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--signals", type=int, default=200_000)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2_000.0, help="signals a second")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds before the flood")
    parser.add_argument(
        "--largest", type=int, default=max(SIZES), help="signals about one answer, for the cost of one more"
    )
    parser.add_argument("--only", choices=("one", "flood"))
    parser.add_argument("--services", action="store_true", help="on Kafka and PostgreSQL, which the environment names")
    parser.add_argument("--name", default="flood", help="of the report; empty: none is written")
    options = parser.parse_args(arguments)
    if options.services and server_urls() is None:
        parser.error("MILLRACE_KAFKA and MILLRACE_DATABASE are not set: make services")
    arm = _SERVERS if options.services else _EMBEDDED
    figures = {}
    if options.only != "flood":
        figures["one"] = cost_of_one(arm, (*(size for size in SIZES if size < options.largest), options.largest))
    if options.only != "one":
        figures["flood"] = flood(arm, options.signals, options.answers, options.rate, options.quiet)
        print(json.dumps(figures["flood"], indent=1))
    if options.name:
        print(write_report(options.name, {"arm": arm.name, **figures}))


if __name__ == "__main__":
    main(sys.argv[1:])
