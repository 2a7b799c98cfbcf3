"""What an import found, counted; and the table that it prints."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from contracts.tasks import Task

_MAX_NAMES = 200
"""Different names in one part of the table; further ones are counted together."""
_MAX_SHOWN = 60


class Line(NamedTuple):
    """A line of the table."""

    part: str
    name: str


class ImportTally:
    """Counts of one run. Persons and rows are remembered as 64 bits each."""

    def __init__(self) -> None:
        self.counts = Counter[Line]()
        self._persons: set[int] = set()
        self._rows: set[int] = set()

    def add(self, part: str, name: str = "", num: int = 1) -> None:
        """Count something."""
        if num == 0:
            return
        line = Line(part, name)
        if line not in self.counts and sum(held.part == part for held in self.counts) >= _MAX_NAMES:
            line = Line(part, "others")
        self.counts[line] += num

    def add_person(self, name: str | None) -> None:
        """Note who a row is from."""
        if name is not None:
            self._persons.add(_bits(name.encode()))

    def is_new(self, row: bytes) -> bool:
        """False if this run has seen a row of this name."""
        bits = _bits(row)
        is_new = bits not in self._rows
        self._rows.add(bits)
        return is_new

    @property
    def num_persons(self) -> int:
        """Different persons."""
        return len(self._persons)

    def __getitem__(self, part: str) -> dict[str, int]:
        """The counts of a part by name."""
        return {line.name: num for line, num in self.counts.items() if line.part == part}


def print_tally(tally: ImportTally, task: Task) -> None:
    """Print the table: rows, what was said of them, persons and consent, secrets."""
    table = Table("what", "number", "")
    for title, part, note in (
        ("rows", "row", ""),
        ("logged", "logged", "or would be, in a dry run"),
        ("duplicates", "duplicate", ""),
        ("refused", "refused", ""),
        ("read as Latin-1", "latin1", "not UTF-8"),
        ("scores with their answer", "joined", ""),
        ("scores without their answer", "orphan", "not in this input"),
        ("mapped to a signal", "signal", ""),
        ("not mapped", "unmapped", "declare a signal, or use --map"),
        ("not taken", "unfit", ""),
        ("with a secret", "secret", "filtered" if task.curation.secrets else "set [curation] secrets to filter them"),
    ):
        found = sorted(tally[part].items(), key=lambda item: -item[1])
        if found or part in {"row", "logged"}:
            names = ", ".join(f"{repr(name)[1:-1][:_MAX_SHOWN]} {num:,}" for name, num in found if name)
            table.add_row(title, f"{sum(tally[part].values()):,}", "; ".join(filter(None, (names, note))))
    consent = "missing consent means: train" if task.consent == "train" else "missing consent means: refused"
    table.add_row("persons", f"{tally.num_persons:,}", consent)
    Console(markup=False).print(table)


def _bits(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest())
