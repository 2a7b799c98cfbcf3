"""What the rest of Millrace knows of a kind of engine. Each folder's `kind.py` has one of these, named `KIND`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from engines.following.driver import EngineDriver
from engines.following.settings import FollowedSection
from engines.wire import Wire
from runtime.settings import Settings


class Followed(NamedTuple):
    """Servers of another project: a process of ours starts them, or is given them, and brings them to versions."""

    process: str
    """The module of that process, which imports it alone."""
    choose: Callable[[Path | None, tuple[str, ...], Sequence[str]], FollowedSection]
    """Its section, from an interpreter, the arm of each server, and the URLs of servers that run already. Raises InvalidSettings."""
    check_policy: Callable[[Settings], None]
    """Raises InvalidSettings if these servers cannot take versions of the home's policy."""
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
