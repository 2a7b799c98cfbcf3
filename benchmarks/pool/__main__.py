"""A day of a pool of cards, simulated: a fixed split, the policy of `[gpu] pool`, and who knew the day beforehand. And kills, in earnest.

    python -m benchmarks.pool                 8 cards under eight services, 16 cards under sixteen
    python -m benchmarks.pool --kills 20      besides, processes that stand for cards, and kill -9: kills.py; ten minutes
    python -m benchmarks.pool --json

In: a real hour of a chat service under an assumed curve of a day (traffic.py); constants with their sources (day.py). Out: the share of card time in
which a card did nothing or less than it could, requests that waited longer than 2 s for a place, samples learned. The fixed split is the best
of all: the one with the most cards for the trainer that lets no request wait longer. The bars: idle at most 10%, none late.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.pool.day import BUDGET_SECONDS, MOVE_SECONDS, ByRule, DayFigures, fixed, live, oracle
from benchmarks.pool.kills import run
from benchmarks.pool.traffic import traffic
from benchmarks.report import end_with, print_table

SIZES = (8, 16)
_FLOOR = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pool", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--quick", action="store_true", help="8 cards alone, no file")
    parser.add_argument("--kills", type=int, default=0, help="of processes that stand for cards; default: none")
    options = parser.parse_args(arguments)
    days = [measure(num) for num in (SIZES[:1] if options.quick else SIZES)]
    figures: dict[str, Any] = {"budget_seconds": BUDGET_SECONDS, "move_seconds": MOVE_SECONDS, "days": days}
    if options.kills:
        figures["kills"] = run(options.kills)
    return end_with(figures, options, show, "pool")


def measure(num_cards: int) -> dict[str, Any]:
    """The three of one size of a pool, with as many services as cards."""
    asked = traffic(num_cards)
    splits = {users: live(asked, num_cards, fixed(users)) for users in range(1, num_cards)}
    in_time = [users for users, found in splits.items() if not found.late]
    best = min(in_time) if in_time else num_cards - 1
    return {
        "cards": num_cards,
        "requests": splits[best].requests,
        "fixed_replicas": best,
        "fixed": splits[best]._asdict(),
        "policy": live(asked, num_cards, ByRule(num_cards, num_cards // 2, _FLOOR))._asdict(),
        "oracle": live(asked, num_cards, oracle(asked, num_cards), moves_cost=False)._asdict(),
    }


def show(figures: dict[str, Any]) -> None:
    """A table of one row per size and chooser."""
    rows = []
    for day in figures["days"]:
        for name in ("fixed", "policy", "oracle"):
            found = DayFigures(**day[name])
            label = f"{day['fixed_replicas']} replicas, fixed" if name == "fixed" else name
            replicas = f"{found.fewest_replicas} to {found.most_replicas}"
            rows.append([
                str(day["cards"]), label, f"{found.idle_share:.1%}", str(found.late), f"{found.worst_wait:.2f} s",
                f"{found.samples_learned:,}", str(found.moves), replicas,
            ])  # fmt: skip
    columns = ("cards", "who decides", "idle", "late", "longest wait", "samples learned", "moves", "replicas")
    if kills := figures.get("kills"):
        print_table("Kills", ("figure", "value"), [(name, str(value)) for name, value in kills.items()])
    print_table(f"A day, at most {figures['budget_seconds']:g} s of waiting", columns, rows)


if __name__ == "__main__":
    raise SystemExit(main())
