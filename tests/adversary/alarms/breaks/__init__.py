"""The ways in which `tests.adversary.alarms` breaks a home, each undone at the end, and which alarm should name it."""

from __future__ import annotations

from tests.adversary.alarms.breaks import ages, kills, learning, load, processes, records, servers, trains
from tests.adversary.alarms.breaks.kinds import Break


def all_breaks() -> tuple[Break, ...]:
    """Those that can be tried here."""
    return (
        *kills.breaks(),
        *processes.breaks(),
        *records.breaks(),
        *ages.breaks(),
        *learning.breaks(),
        *load.breaks(),
        *servers.breaks(),
        *trains.breaks(),
    )
