"""Mutated, truncated, reordered, replayed, downgraded, forged and wrong-base deltas: is any of them applied?

    python -m tests.adversary.forgeries --attacks 10000          a table of kinds
    python -m tests.adversary.forgeries --attacks 400 --json     one object instead
    python -m tests.adversary.forgeries --only 1234              that attack alone, and what came of it

Each attack is made on a fresh replica whose store has a keyring, and on the engine's own path (`stage_onto`). It must be refused
with a `MillraceError`, and no served weight and no history may change. When the genuine files are back, the replica must reach
the next version without a full copy. "harmless": the replica reached exactly the published weights, for example because the
flipped bit is never read. Exits with 1 if anything else was seen.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import print_table
from tests.adversary.forgeries.kinds import ForgedKind, disk_kinds, store_kinds
from tests.adversary.forgeries.payloads import payload_kinds
from tests.adversary.forgeries.signed import signed_kinds
from tests.adversary.forgeries.victims import APPLIED, HARMLESS, REFUSED, Sabotage, Seen, Victims
from tests.adversary.forgeries.world import Edits, ForgedStore

_GIVE_UP_SECONDS = 60.0
_STDERR = 2
MEMORY = Path("/dev/shm")  # noqa: S108 private folders are made in it
"""Where nothing waits for a disk: replicas sync a lot."""


class ForgedAttack(NamedTuple):
    """One attack; its number and the seed determine it."""

    number: int
    kind: ForgedKind
    victim: str
    edits: Edits
    is_live: bool
    """Of an attack on a replica's own files: they are replaced while it runs, not while it is down."""


class ForgedRow(NamedTuple):
    """The results of one kind."""

    tried: Counter[str]
    """Outcomes at the replica."""
    codes: Counter[str]
    reader_tried: Counter[str]
    reader_codes: Counter[str]


def all_kinds() -> list[ForgedKind]:
    """In the order of the table."""
    return [*store_kinds(), *signed_kinds(), *payload_kinds(), *disk_kinds()]


def make_attack(world: ForgedStore, seed: int, number: int) -> ForgedAttack:
    """The attack of that number; kinds take turns."""
    kinds = all_kinds()
    kind, chance = kinds[number % len(kinds)], random.Random(f"{seed} {number}")
    victim = chance.choice(kind.victims)
    return ForgedAttack(number, kind, victim, kind.make(world, chance, victim), chance.random() < 0.5)


def run_attacks(
    folder: Path,
    numbers: Sequence[int],
    seed: int,
    *,
    recover_every: int = 1,
    sabotage: Sabotage | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make these attacks; returns the findings.

    Args:
        folder: an empty one.
        numbers: of the attacks.
        seed: of the world and of the attacks.
        recover_every: after every how many attacks the genuine files must lead on.
        sabotage: what to weaken, to show that it is noticed.
        before_each: called before each attack.
    """
    started = time.monotonic()
    world = ForgedStore(folder, seed)
    victims = Victims(world, sabotage or Sabotage())
    rows = {kind.name: ForgedRow(Counter(), Counter(), Counter(), Counter()) for kind in all_kinds()}
    problems: list[str] = []
    for number in numbers:
        before_each()
        attack = make_attack(world, seed, number)
        seen = victims.attack(
            attack.kind, attack.victim, attack.edits, is_live=attack.is_live, is_followed_up=number % recover_every == 0
        )
        row = rows[attack.kind.name]
        _note(row.tried, row.codes, seen.replica)
        if seen.reader is not None:
            _note(row.reader_tried, row.reader_codes, seen.reader)
        problems += [
            f"attack {number} ({attack.kind.name}, on a {attack.victim}): {who}: {problem}"
            for who, problem in _problems(attack.kind, seen)
        ]
    return {
        "attacks": len(numbers),
        "applied": sum(row.tried[APPLIED] + row.reader_tried[APPLIED] for row in rows.values()),
        "kinds": {name: _figures(row) for name, row in rows.items()},
        "problems": problems,
        "good": not problems,
        "seconds": round(time.monotonic() - started, 1),
    }


def _note(tried: Counter[str], codes: Counter[str], seen: Seen) -> None:
    tried[seen.outcome] += 1
    codes.update(seen.codes)


def _problems(kind: ForgedKind, seen: Any) -> list[tuple[str, str]]:
    found = [("replica", seen.replica), *([("reader", seen.reader)] if seen.reader is not None else [])]
    allowed = {REFUSED, HARMLESS} if kind.may_be_harmless else {REFUSED}
    problems = [(who, f"{one.outcome} {one.detail}".strip()) for who, one in found if one.outcome not in allowed]
    return problems + [("afterwards", seen.afterwards)] * bool(seen.afterwards)


def _figures(row: ForgedRow) -> dict[str, Any]:
    return {
        "tried": row.tried.total(),
        "outcomes": dict(row.tried),
        "codes": dict(row.codes.most_common()),
        "reader_outcomes": dict(row.reader_tried),
        "reader_codes": dict(row.reader_codes.most_common()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.adversary.forgeries",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--attacks", type=int, default=10_000)
    parser.add_argument("--only", type=int, help="the attack of this number alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="by default a temporary one, in memory if that is a disk")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args(arguments)
    in_memory = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=options.folder or in_memory))
    numbers = range(options.attacks) if options.only is None else [options.only]
    try:
        # Who hangs in compiled code hears no signal: the process ends then, and says where it was.
        figures = run_attacks(
            folder,
            numbers,
            options.seed,
            before_each=lambda: faulthandler.dump_traceback_later(_GIVE_UP_SECONDS, exit=True, file=_STDERR),
        )
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(figures))
    else:
        _print(figures)
    return 0 if figures["good"] else 1


def _print(figures: dict[str, Any]) -> None:
    rows = []
    for name, row in figures["kinds"].items():
        if not row["tried"]:
            continue
        codes = ", ".join(f"{code} {number}" for code, number in row["codes"].items())
        at_reader = row["reader_outcomes"]
        harmless = row["outcomes"].get(HARMLESS, 0)
        applied = row["outcomes"].get(APPLIED, 0) + at_reader.get(APPLIED, 0)
        rows.append((name, row["tried"], row["outcomes"].get(REFUSED, 0), codes, harmless, applied))
    print_table(
        f"{figures['attacks']} attacks, seed and number make each again; {figures['seconds']} s",
        ["kind", "tried", "refused", "by", "harmless", "applied"],
        rows,
    )
    refused = sum(row["outcomes"].get(REFUSED, 0) for row in figures["kinds"].values())
    harmless = sum(row["outcomes"].get(HARMLESS, 0) for row in figures["kinds"].values())
    print(f"refused {refused}, harmless {harmless}, applied {figures['applied']}, problems {len(figures['problems'])}")
    for problem in figures["problems"]:
        print(problem)


if __name__ == "__main__":
    sys.exit(main())
