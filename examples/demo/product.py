"""What a demo shows: a product, its users, and what must be reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection

from examples.demo.summary import DemoGoals
from examples.reservations.evaluate import Evaluation
from services.provider import ProviderSettings


def _nothing(_connection: Connection, _clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {}


def _unbroken(_summary: Mapping[str, Any]) -> list[str]:
    return []


def _silent(_summary: Mapping[str, Any]) -> str:
    return ""


class DemoProduct(NamedTuple):
    """A folder of `examples/` with `base`, `task.toml` and a module `users`."""

    name: str
    """Of the policy."""
    folder: Path
    num_sentinels: int
    write_sentinels: Callable[[Path, int], Path]
    """The first so many, into a file; returns its path."""
    evaluate: Callable[[str, str, str, int], Evaluation]
    """From the endpoint's address, an operator's key, the policy's name and a version: how it does on the held-out cases."""
    goals: DemoGoals
    training: Mapping[str, Any]
    """Of the section [training]."""
    seconds: float
    """How long users work at most."""
    num_users: int
    visits: int
    """Of all users together; then they leave."""
    answers_per_visit: float
    train: Mapping[str, Any] | None = None
    """Of the section [train]; None: a version that passed the gate goes live at once."""
    further: Callable[[Connection, Sequence[Mapping[str, Any]]], dict[str, Any]] = _nothing
    """More figures for the summary, once everything is drained; of the users' own list too."""
    learning: str = ""
    """A table [learning] that the task file gets, in TOML."""
    provider: ProviderSettings | None = None
    """Who answers users at first."""
    broken: Callable[[Mapping[str, Any]], list[str]] = _unbroken
    """By the summary of a whole run: further promises that were broken, in words."""
    closing: Callable[[Mapping[str, Any]], str] = _silent
    """What is said of it at the end."""
