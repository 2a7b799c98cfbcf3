"""A thousand sessions at once for minutes: does the memory of `web` stay flat, while sessions end, others begin, and what is kept expires?

In: nothing. Out: resident memory and the size of `sessions.db` every few seconds. Each conversation pauses between two turns as people
do, and another one takes its place after its last turn. What is kept lives for the shortest time that the settings allow, so that it
expires many times in one run. Warm-up is until what was kept first has expired and was swept: two of those times.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.worlds.gateway import GatewayWorld, running
from tests.worlds.paths import EXAMPLE
from tests.worlds.sessions.users import SessionUsers, wide_base

KEPT_SECONDS = 60.0
_WARM_UP_SECONDS = 2 * KEPT_SECONDS
_EVERY_SECONDS = 5.0
_FLAT = 0.05
"""By how much the last third of the samples may exceed the first third behind the warm-up."""


class MemorySample(NamedTuple):
    """`web` at one moment."""

    seconds: float
    resident_mib: float
    kept_mib: float
    answers: int
    ended: int


async def watch(world: GatewayWorld, users: SessionUsers, at_once: int, seconds: float) -> list[MemorySample]:
    """Samples of so many seconds of conversations."""
    began, samples = time.monotonic(), list[MemorySample]()
    talking = asyncio.create_task(users.run(at_once))
    while (now := time.monotonic() - began) < seconds:
        kept = sum(path.stat().st_size for path in world.home.glob("sessions.db*"))
        resident = world.process.memory_info().rss
        samples.append(MemorySample(now, resident / 2**20, kept / 2**20, users.num_whole, users.num_ended))
        await asyncio.sleep(_EVERY_SECONDS)
    users.stop()
    await talking
    return samples


def run(sessions: int, turns: int, pause: float, seconds: float) -> dict[str, Any]:
    """The content of the report. `pause`: seconds between two turns of a conversation, at the mean."""
    dice = random.Random(1)  # noqa: S311 pauses, not secrets
    with tempfile.TemporaryDirectory() as folder:
        base = wide_base(EXAMPLE / "base", Path(folder) / "base")
        engine = ["-m", "tests.worlds.sessions.varied_engine"]
        home = Path(folder) / "home"
        with running(home, None, "memory", engine=engine, base=base, session_seconds=KEPT_SECONDS) as world:
            users = SessionUsers(world, turns, pause=lambda: dice.uniform(0.0, 2 * pause))
            samples = asyncio.run(watch(world, users, sessions, seconds))
    failed = sum(one.ended != "whole" for one in users.sent)
    warm = [one for one in samples if one.seconds >= min(_WARM_UP_SECONDS, seconds / 2)]
    third = max(len(warm) // 3, 1)
    first, last = (statistics.median(one.resident_mib for one in part) for part in (warm[:third], warm[-third:]))
    return {
        "sessions_at_once": sessions,
        "turns": turns,
        "seconds": seconds,
        "kept_seconds": KEPT_SECONDS,
        "answers": users.num_whole,
        "sessions_begun": len({one.session for one in users.sent}),
        "sessions_ended": users.num_ended,
        "failed": failed,
        "web_mib": {"cold": samples[0].resident_mib, "after_warm_up": first, "end": last},
        "growth": last / first - 1,
        "samples": [one._asdict() for one in samples],
        "good": failed == 0 and last <= (1 + _FLAT) * first,
    }
