"""Apps that ask for more than there is, or always for the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from runtime.settings import load_settings
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.breaks.repeating import again_and_again
from tests.adversary.alarms.breaks.settings import changed
from tests.adversary.alarms.world import GRADED, WatchedHome

TWO_ENGINES = ("--engines=2",)
_REQUESTS, _CHOICES, _CALLERS = 40, 8, 6
_EXPECTED = frozenset({200, 429, 502, 503})
"""Answers, and what engines that are full or have just been killed say."""


@contextmanager
def callers(world: WatchedHome, number: int, choices: int = 1, **sampling: float) -> Iterator[None]:
    """So many callers, each with one request after the other."""
    headers = {"authorization": f"Bearer {world.app_key}", "x-millrace-task": GRADED}
    settings = {"model": load_settings(world.home).policy, "n": choices, **sampling}

    def ask() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{world.port}", headers=headers, timeout=60.0) as client:
            for _ in range(_REQUESTS):
                words = [{"role": "user", "content": f"a table for {random.random()}"}]
                answer = client.post("/v1/chat/completions", json={**settings, "messages": words})
                if answer.status_code not in _EXPECTED:
                    answer.raise_for_status()

    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(again_and_again(ask, 0.0))
        yield


@contextmanager
def greedy(world: WatchedHome) -> Iterator[None]:
    """An app asks for the likeliest answer each time."""
    with callers(world, 3, _CHOICES, temperature=0.0, max_tokens=2):
        yield


@contextmanager
def full_engines(world: WatchedHome) -> Iterator[None]:
    """Engines that take one request at a time, and more callers than engines."""
    with changed(world, "engine", "engine", max_open_requests=1), callers(world, _CALLERS, max_tokens=24):
        yield


def breaks() -> tuple[Break, ...]:
    """Those of a home with one engine, and of one with two."""
    return (
        Break("an app explores nothing", "TooLittleExploring", "", greedy, hurried=True),
        Break("two engines are full", "EngineRequestsMoving", "", full_engines, hurried=True, options=TWO_ENGINES),
    )
