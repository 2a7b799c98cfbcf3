"""Named places where a process may die: the crash tests raise there, production passes through."""

from __future__ import annotations

from collections.abc import Callable

FaultPoint = Callable[[str], None]


def no_fault(place: str) -> None:
    """Production: pass."""
    del place
