"""Fault points: named places where crash tests let a process die. In production they do nothing."""

from __future__ import annotations

from collections.abc import Callable

FaultPoint = Callable[[str], None]


def no_fault(place: str) -> None:
    """In production, do nothing."""
    del place
