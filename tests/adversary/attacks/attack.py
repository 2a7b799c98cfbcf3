"""The type of every attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Attack(NamedTuple):
    """One thing that must not work.

    Attributes:
        name: what the attacker tries, in a few words.
        run: tries it; returns what got through, or None if it was refused. An exception means that the attack itself
            is broken, which counts as a failure too.
        doors: how many ways in it tries (routes, sockets, kinds of junk), for the table.
    """

    name: str
    run: Callable[[], str | None]
    doors: int = 1
