"""What the rest of Millrace knows of a kind of engine. Each folder's `kind.py` has one of these, named `KIND`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
from pydantic import Field, model_validator

from contracts.assignments import Slot
from contracts.memory.training import TrainingWay
from engines.following.driver import EngineDriver, ServerFacts
from engines.wire import Wire
from runtime.settings import Section, Settings
from weights.stores.port import REMOTE


class FollowedSection(Section):
    """What the sections of all followed servers have: one server for each slot."""

    slots: tuple[Slot, ...] = Field(default=("live", "candidate"), min_length=1)
    """The arm of each server; without `candidate` nothing is gated, without `canary` no version is proven on a few users."""
    urls: tuple[str, ...] = ()
    """Servers of this host that run already, one per slot: followed, neither started nor stopped."""
    region: str | None = None
    """Default: the home's."""
    weights: str | None = Field(default=None, pattern=REMOTE)
    """Where versions are read: `http://HOST:PORT/PREFIX` of the region's cache. Default: the home's store."""

    @model_validator(mode="after")
    def _count_urls(self) -> Self:
        if self.urls and len(self.urls) != len(self.slots):
            raise ValueError(
                f"urls names {len(self.urls)} servers for {len(self.slots)} slots: give one URL for each slot"
            )
        return self


class Followed(NamedTuple):
    """Servers of another project: a process of ours starts them, or is given them, and brings them to versions."""

    section: type[FollowedSection]
    """Its settings: the section of millrace.toml with the name of the kind."""
    process: str
    """The module of that process, which imports it alone."""
    choose: Callable[[Path | None, tuple[str, ...], Sequence[str]], FollowedSection]
    """The section, from an interpreter, the arm of each server, and the URLs of servers that run already. Raises InvalidSettings."""
    check_policy: Callable[[Settings, Any, Mapping[str, Any]], TrainingWay | None]
    """From the home, its section of these servers, and [training] as plain values: how the trainer must train, so that it fits beside them on
    its card; None: as it likes. Raises InvalidSettings if these servers cannot take versions of the home's policy, or have no room."""
    check: Callable[[ServerFacts, Settings, str], None]
    """Raises InvalidSettings if a server, by its facts and its URL, cannot serve the home's policy."""
    drive: Callable[[httpx.Client], EngineDriver]
    """Makes a driver from a client with a server's URL and key."""


class EngineKind(NamedTuple):
    """A kind of engine."""

    wire: Wire
    """How it is asked."""
    start_seconds: float
    """How long it may take until it answers."""
    followed: Followed | None = None
    """None: the engine follows its assignments itself."""
    demo_seconds: float | None = None
    """The demo's time limit on this engine, if it needs another one."""
