"""The trainer as a process that is killed: its own command line, so that every start pays for its imports.

    python -m tests.adversary.kills.trainer_child HOME STEPS [--die-at PLACE:NUMBER]

It learns this many steps, counting those of earlier processes, accepts each candidate as a release would, and stops as on SIGTERM. It
prints one JSON object per line: the places that it comes to.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE
from runtime.lease import Lease
from runtime.settings import load_settings

_LINES = 9
"""Where the lines go: the standard output that the parent gave."""
TOLD = {"journal: plan durable", "training: step taken"}


class Places:
    """A fault point that tells where the trainer is, and kills it at one of the places."""

    def __init__(self, die_at: str) -> None:
        """`die_at`: a place, a colon, and at which coming; or empty."""
        place, _, number = die_at.rpartition(":")
        self._place, self._number = place, int(number or 0)
        self._seen: Counter[str] = Counter()

    def __call__(self, place: str) -> None:
        """The trainer comes to a place."""
        self._seen[place] += 1
        if place in TOLD:
            say(place=place)
        if place == self._place and self._seen[place] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


def say(**facts: Any) -> None:
    """One line to the parent."""
    os.write(_LINES, json.dumps({"at": time.time(), **facts}).encode() + b"\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--die-at", default="")
    options = parser.parse_args()
    os.dup2(1, _LINES)
    os.dup2(2, 1)  # the log is not for the parent
    settings = load_settings(options.home)
    database = settings.database()
    lease = Lease.acquire(database, settings.policy)
    with lease.kept_alive():
        from pipelines.training.process import background_threads, make_trainer  # noqa: PLC0415 as the trainer's own command does

        stop = threading.Event()
        with background_threads() as background:
            trainer = make_trainer(settings, database, lease, stop, background, fault=Places(options.die_at))
            if trainer is None:
                raise RuntimeError("no trainer")
            while trainer.state.step < options.steps or not trainer.is_settled:
                trainer.attempt(0.0)
                accept(database, settings.policy)
            stop.set()
            trainer.run(stop)
        say(place="stopped")
    database.close()


def accept(database: Any, policy: str) -> None:
    """Make the candidate live, as release does with a good one."""
    with database.transaction() as connection:
        arms = assignments.read(connection, policy)
        if CANDIDATE not in arms or (version := arms[CANDIDATE].version) is None:
            return
        for arm, wanted in ((CANDIDATE, None), (LIVE, version)):
            epoch = arms[arm].epoch if arm in arms else 0
            assignments.move(
                connection,
                policy=policy,
                arm=arm,
                version=wanted,
                root=arms[CANDIDATE].root if wanted is not None else None,
                expected_epoch=epoch,
                writer="benchmark",
                reason="accepted",
            )


if __name__ == "__main__":
    main()
