"""The serving API killed with SIGKILL while sessions run: what did users get, what holds the log, and what do later calls go on from?

In: nothing. Out: counts, and problems by name. Users ask again after each broken connection, with a name of its own for every request;
the log must hold each acknowledged one once, any other at most once, and nothing else. Each logged prompt is compared, token for token,
with what its `turn` says it goes on from, and its text with the messages of its session. Every tenth time what is kept of all sessions is deleted
too: their next calls must then be `unknown_history`.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from tokenizers import Tokenizer

from contracts.turns import count_rows
from tests.worlds.gateway import GatewayWorld, running, wait_for, web_of
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.sessions.records import LoggedCall, calls_of, goes_on
from tests.worlds.sessions.users import Sent, SessionUsers, wide_base

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.05, 0.6
_EXPECTED = frozenset({"", "first", "repeated", "unknown_history"})
_LOST_IN_PART = frozenset({"foreign_answer", "answer_rewritten"})
"""With Redis on a busy machine a single write may be lost, so that an earlier call of the session is known and the last one is not."""
_WIPED = 10
_GAP = 1.0
"""Ms between two tokens, so that kills meet answers half way."""


class Killer:
    """Kills the serving API of a world, and starts it again."""

    def __init__(self, world: GatewayWorld, redis: str | None, seed: int) -> None:
        self._world, self._redis = world, redis
        self._moments = random.Random(seed)
        self._process = world.process
        self._started: subprocess.Popen[bytes] | None = None
        self.seconds_away: list[float] = []
        self.wiped_at: list[float] = []

    async def kill(self, *, wipe: bool) -> None:
        """At a random moment. Returns when it serves again; `wipe`: without anything that was kept of sessions."""
        await asyncio.sleep(self._moments.uniform(_SHORTEST_SECONDS, _LONGEST_SECONDS))
        killed_at = time.monotonic()
        self._process.kill()
        await asyncio.to_thread(self._process.wait, 30)
        if wipe:
            self.wiped_at.append(time.time())
            self._wipe()
        await asyncio.to_thread(self._start)
        await wait_for(self._world)
        self.seconds_away.append(time.monotonic() - killed_at)

    def close(self) -> None:
        """Stop what was started here."""
        if self._started is not None:
            self._started.terminate()
            self._started.wait(60)

    def _start(self) -> None:
        with (self._world.home / "web.log").open("ab") as output:
            self._started = subprocess.Popen(  # noqa: S603 our own program
                [sys.executable, *web_of(self._world.home)], cwd=ROOT, stdout=output, stderr=output
            )
        self._process = psutil.Process(self._started.pid)

    def _wipe(self) -> None:
        if self._redis is None:
            for path in self._world.home.glob("sessions.db*"):
                path.unlink()
            return
        import redis  # noqa: PLC0415 only where there is one

        with redis.Redis.from_url(self._redis) as client:
            for name in client.scan_iter("*turn:*", count=1000):
                client.delete(name)


async def kill_all(world: GatewayWorld, killer: Killer, kills: int, at_once: int, turns: int) -> SessionUsers:
    """As many kills; what users sent, until all that began was answered."""
    users = SessionUsers(world, turns)
    talking = asyncio.create_task(users.run(at_once))
    for number in range(kills):
        await users.more(at_once)  # sessions go on between two kills
        await killer.kill(wipe=number % _WIPED == _WIPED - 1)
    await users.more(turns * at_once)
    users.stop()
    await talking
    return users


def judge(
    sent: Sequence[Sent], logged: Sequence[LoggedCall], tokenizer: Tokenizer, expected: frozenset[str] = _EXPECTED
) -> dict[str, Any]:
    """Counts and problems. Pure. `expected`: the branches that kills may cause."""
    by_attempt = {one.attempt: one for one in sent}
    found = Counter(call.labels.get("attempt", "") for call in logged)
    whole = {one.attempt for one in sent if one.ended == "whole"}
    by_key = {call.key: call for call in logged}
    problems = {
        "acknowledged_and_not_logged": sorted(whole - found.keys()),
        "logged_twice": sorted(name for name, count in found.items() if count > 1),
        "logged_and_never_sent": sorted(found.keys() - by_attempt.keys()),
        "refused": sorted(f"{one.ended} {one.session}" for one in sent if one.ended not in {"whole", "broken"}),
        "parent_not_logged": sorted(call.key for call in logged if call.turn.parent and call.turn.parent not in by_key),
        "wrong_prefix": sorted(call.key for call in logged if not goes_on(call, by_key)),
        "wrong_text": sorted(call.key for call in logged if not says(call, by_attempt, tokenizer)),
        "unnamed_branch": sorted({call.turn.branch for call in logged} - expected),
    }
    unacknowledged = sum(name not in whole for name in found)
    return {
        "sent": len(sent),
        "acknowledged": len(whole),
        "broken": sum(one.ended == "broken" for one in sent),
        "logged": len(logged),
        "logged_unacknowledged": unacknowledged,
        "is_balanced": len(logged) == len(whole) + unacknowledged and len(sent) == len(by_attempt),
        "sessions": len({one.session for one in sent}),
        "turns": dict(Counter(call.turn.branch or "extended" for call in logged)),
        "rows": count_rows([call.counted for call in logged]).rows,
        "saved": count_rows([call.counted for call in logged]).saved,
        "problems": {name: found[:10] for name, found in problems.items() if found},
    }


def says(call: LoggedCall, by_attempt: Mapping[str, Sent], tokenizer: Tokenizer) -> bool:
    """Whether a prompt holds just the questions of its session up to its own, once each and in order."""
    one = by_attempt.get(call.labels.get("attempt", ""))
    if one is None:
        return True  # a problem of its own
    text = tokenizer.decode(call.prompt, skip_special_tokens=False)
    places = [text.find(f"{one.session} {turn}: ") for turn in range(one.turn + 1)]
    return min(places) >= 0 and places == sorted(places) and text.count(one.session) == one.turn + 1


def run(kills: int, at_once: int, turns: int, redis: str | None = None, seed: int = 1) -> dict[str, Any]:
    """The content of the report. `redis`: where one runs; None: what is kept lies in a file of the home."""
    with tempfile.TemporaryDirectory() as folder:
        base = wide_base(EXAMPLE / "base", Path(folder) / "base")
        engine = ["-m", "tests.worlds.sessions.varied_engine", "--gap", str(_GAP)]
        with running(Path(folder) / "home", None, "kills", engine=engine, base=base, redis=redis) as world:
            killer = Killer(world, redis, seed)
            began = time.monotonic()
            try:
                users = asyncio.run(kill_all(world, killer, kills, at_once, turns))
            finally:
                killer.close()
            seconds = time.monotonic() - began
            logged = calls_of(world.home)
        expected = _EXPECTED | _LOST_IN_PART if redis else _EXPECTED
        found = judge(users.sent, logged, Tokenizer.from_file(str(base / "tokenizer.json")), expected)
    if not killer.wiped_at and not redis and found["turns"].get("unknown_history"):
        found["problems"]["lost_without_a_wipe"] = [str(found["turns"]["unknown_history"])]
    return {
        "kills": kills,
        "store": "redis" if redis else "file of the home",
        "wiped": len(killer.wiped_at),
        "seconds": seconds,
        "seconds_away": {"median": sorted(killer.seconds_away)[kills // 2], "max": max(killer.seconds_away)},
        **found,
        "good": not found["problems"] and found["is_balanced"],
    }
