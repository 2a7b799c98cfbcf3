"""Breaks a home in turn, and notes which alarm fired after how many seconds, in a real Prometheus.

usage: sudo python -m tests.adversary.alarms [--scrape 5] [--only TEXT ...] [--list] [--at-once] [--quick]

In: nothing. Out: a table, a row of the day's JSON file as soon as each break was tried, and status 1 if a break was not named, or anything fired while all was well. What alarms
as they are must name within a minute is broken first. An alarm that waits for longer is looked at in a copy with shorter durations
(`hurry.py`): hurried by how much stands beside each.
Needs Debian's `prometheus` and root, for a small disk of its own; with `faketime` also the clock is tried, and with the servers of
`. runs/services/env` what concerns Kafka. All of it takes over an hour.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import moment, print_table, report_path, write_report
from tests.adversary.alarms.breaks import all_breaks
from tests.adversary.alarms.breaks.kinds import LONGEST_SECONDS, Break
from tests.adversary.alarms.hurry import factors
from tests.adversary.alarms.world import WatchedHome, until

NAMED_WITHIN_SECONDS = 60.0
_CALM_SECONDS, _QUIET_SECONDS = 300.0, 60.0
_USERS_SECONDS = 60.0
_LOOK_SECONDS = 0.25


def main() -> int:
    """Break and note."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.adversary.alarms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scrape", type=float, default=5.0, help="seconds between two scrapes")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only breaks whose name or alarm has this text; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="say which breaks there are, and stop")
    parser.add_argument(
        "--at-once", action="store_true", help="do not look first whether anything fires while all is well"
    )
    parser.add_argument("--quick", action="store_true", help="write no file")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("no prometheus: apt-get install prometheus", file=sys.stderr)
        return 2
    wanted = [text.lower() for text in options.only or [""]]
    chosen = [one for one in all_breaks() if any(text in f"{one.name} {one.alarm}".lower() for text in wanted)]
    if options.list or not chosen:
        print_table("breaks", ("alarm", "break"), [(one.alarm, one.name) for one in chosen])
        return 0 if chosen else 2
    left_out = factors().keys() - {one.alarm for one in all_breaks()}
    if left_out and not options.only:
        print(f"not rung here, see --help: {', '.join(sorted(left_out))}", file=sys.stderr)
    quiet, tried, rows = list[str](), list[Break](), list[dict[str, Any]]()
    for home in dict.fromkeys(one.home for one in chosen):
        more, _ = home
        with tempfile.TemporaryDirectory(prefix="millrace-alarms-") as folder:
            world = WatchedHome(Path(folder), options.scrape, more)
            with world.running():
                quiet = quiet if options.at_once else sorted({*quiet, *_quiet(world)})
                found = "not looked" if options.at_once else quiet or "nothing fires"
                print(f"all is well ({' '.join(more) or 'up as it is'}): {found}", flush=True)
                for one in (one for one in chosen if one.home == home):
                    tried.append(one)
                    rows.append(_row_of(world, one))
                    if not options.quick:
                        _save(rows[-1], None if options.at_once else quiet, options.scrape)
    table = [(row["break"], row["alarm"] or "none", row["seconds"] or "-", ", ".join(row["others"])) for row in rows]
    print_table(f"scrape every {options.scrape:g} s", ("break", "alarm", "seconds", "also firing"), table)
    good = not quiet and all(
        row["alarm"] and (may_take_long(one) or row["seconds"] <= NAMED_WITHIN_SECONDS)
        for one, row in zip(tried, rows, strict=True)
    )
    return 0 if good else 1


def _row_of(world: WatchedHome, one: Break) -> dict[str, Any]:
    row = {"break": one.name, "wanted": one.alarm, "hurried": factors()[one.alarm] if one.hurried else None, **moment()}
    row |= {"alarm": None, "seconds": None, "summary": None, "others": []}
    try:
        _try(world, one, row)
    except Exception as error:  # noqa: BLE001 it is in the row, and the other breaks can be tried
        row["problem"] = f"{type(error).__name__}: {error}"
    world.end_users()
    print(row, flush=True)
    return row


def _save(row: Mapping[str, Any], quiet: Sequence[str] | None, scrape_seconds: float) -> None:
    """Put a row into the file of this day, in the place of an earlier one of the same break, so that what ends early keeps what it saw.

    `quiet`: what fired while all was well; None: nobody looked.
    """
    before = json.loads(path.read_text()) if (path := report_path("alarms")).exists() else {}
    others = [one for one in before.get("breaks", ()) if one["break"] != row["break"]]
    found = before.get("fired_while_well") if quiet is None else list(quiet)
    write_report("alarms", {"scrape_seconds": scrape_seconds, "fired_while_well": found, "breaks": [*others, row]})


def may_take_long(one: Break) -> bool:
    """Whether its alarm need not name it within a minute."""
    return one.hurried or one.longest_seconds > LONGEST_SECONDS


def _quiet(world: WatchedHome) -> list[str]:
    """What fires within a minute of work by users and as much rest; [] is right."""
    fired = set[str]()
    working = threading.Thread(target=world.users, args=(_USERS_SECONDS,))
    working.start()
    ends = time.monotonic() + _USERS_SECONDS + _QUIET_SECONDS
    while time.monotonic() < ends or working.is_alive():
        fired |= {" ".join(name) for name in world.alarms() or ()}
        time.sleep(_LOOK_SECONDS)
    return sorted(fired)


def _try(world: WatchedHome, one: Break, row: dict[str, Any]) -> None:
    """One break. Into its row: the alarm's words, the seconds from when it was broken until it fired, and what else began to fire."""
    wanted = (one.alarm, one.process)

    def firing() -> dict[tuple[str, str], str] | None:
        return world.alarms(hurried=one.hurried)

    until(lambda: (now := firing()) is not None and wanted not in now, _CALM_SECONDS, f"{wanted} does not end")
    before = firing() or {}
    if one.users:
        threading.Thread(target=world.users, args=(one.longest_seconds,), daemon=True).start()
        time.sleep(_USERS_SECONDS / 4)
    with one.broken(world):
        began = time.monotonic()
        while row["alarm"] is None and time.monotonic() < began + one.longest_seconds:
            now = firing() or {}
            row["others"] = sorted({*row["others"], *(" ".join(name) for name in now if name not in {*before, wanted})})
            if wanted in now:
                seconds = round(time.monotonic() - began, 1)
                row |= {"alarm": one.alarm, "seconds": seconds, "summary": now[wanted]}
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
