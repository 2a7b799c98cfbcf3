"""The feedback server killed with SIGKILL under load, again and again: is everything that it acknowledged still there?"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.worlds.feedback import FeedbackWorld, running, servers
from tests.worlds.servers.load import start_load, stop_load

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.2, 1.0


class KillVerdict(NamedTuple):
    """What was found after the last restart; every field but the counts must be empty."""

    num_kills: int
    num_acknowledged: int
    num_stored: int
    lost: list[str]
    """Acknowledged, and not in the database."""
    not_logged: list[str]
    """In the database, and not in the log."""
    not_stored: list[str]
    """In the log, and not in the database: an effect without a cause."""
    num_repeated: int
    """In the log more than once: relayed, and killed before that was noted. Consumers keep the first."""

    @property
    def is_good(self) -> bool:
        """Nothing acknowledged was lost; what is stored is logged, and nothing else."""
        return self.num_acknowledged > 0 and not (self.lost or self.not_logged or self.not_stored)


def kill_under_load(world: FeedbackWorld, num_kills: int, connections: int = 16, seed: int = 1) -> KillVerdict:
    """Kill at random moments of a running load, replica after replica, then compare the clients' list with the rest."""
    moments = random.Random(seed)
    loads = [
        start_load(world.plan(number, connections=connections, seconds=3600.0, warm_up=0.0, keep_answers=True))
        for number in range(len(world.homes))
    ]
    for kill in range(num_kills):
        world.wait_for_signals()
        time.sleep(moments.uniform(_SHORTEST_SECONDS, _LONGEST_SECONDS))
        world.restart(kill % len(world.homes))
    world.wait_for_signals()
    answers = [answer for load in loads for answer in stop_load(load).answers]
    world.drain()
    return _judge(num_kills, {msgspec.json.decode(answer)["id"] for answer in answers}, world)


def kill_feedback(folder: Path, num_kills: int, seed: int) -> dict[str, Any]:
    """Embedded, and with two replicas on servers if the environment names them."""
    found: dict[str, KillVerdict] = {}
    with running(_made(folder / "embedded")) as world:
        found["embedded"] = kill_under_load(world, num_kills, seed=seed)
    if (urls := servers()) is not None:
        with running(_made(folder / "servers"), *urls, replicas=2) as world:
            found["kafka and postgresql, two replicas"] = kill_under_load(world, num_kills, seed=seed)
    problems = [f"{where}: {verdict}" for where, verdict in found.items() if not verdict.is_good]
    figures = {where: {**verdict._asdict()} for where, verdict in found.items()}
    return {**figures, "problems": problems, "good": not problems}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _judge(num_kills: int, acknowledged: set[str], world: FeedbackWorld) -> KillVerdict:
    stored, logged = world.stored_ids(), Counter(world.logged_ids())
    return KillVerdict(
        num_kills=num_kills,
        num_acknowledged=len(acknowledged),
        num_stored=len(stored),
        lost=sorted(acknowledged - stored),
        not_logged=sorted(stored - logged.keys()),
        not_stored=sorted(logged.keys() - stored),
        num_repeated=sum(num > 1 for num in logged.values()),
    )
