"""How often simulated users come: a pace that can be changed while they work, and a number of visits after which they leave."""

from __future__ import annotations

import argparse
from pathlib import Path


class Pace:
    """Seconds from one visit of a user to the next, and how many visits there are in all.

    Args:
        seconds: the pace, until `file` says another one.
        file: holds a number of seconds; it is read before each visit, and may be replaced at any moment.
        visits: of all users together; None: no limit.
    """

    def __init__(self, seconds: float, file: Path | None = None, visits: int | None = None) -> None:
        self._seconds, self._file, self._left = seconds, file, visits

    @property
    def seconds(self) -> float:
        """The pace at this moment."""
        if self._file is not None and self._file.exists():
            self._seconds = float(self._file.read_text())
        return self._seconds

    def take(self) -> bool:
        """Take one visit. False: none is left."""
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0


def write_pace(file: Path, seconds: float) -> None:
    """Set the pace of the users who read this file. They never see half of a number."""
    part = file.with_suffix(".part")
    part.write_text(str(seconds))
    part.replace(file)


def add_pace_options(parser: argparse.ArgumentParser, seconds: float) -> None:
    """The options of `pace_of`."""
    parser.add_argument("--pace", type=float, default=seconds, help="seconds from one visit of a user to the next")
    parser.add_argument("--pace-file", type=Path, help="file with another pace, read before each visit")
    parser.add_argument("--visits", type=int, help="all users leave after this many visits (default: no limit)")


def pace_of(options: argparse.Namespace) -> Pace:
    """The pace that the command line asks for."""
    return Pace(options.pace, options.pace_file, options.visits)
