"""Processes that stand for cards, killed at any moment: does each card have one holder, users their floor, and every move an end?

A supervisor with four places runs the product's own keeper, faster than in life; its children are `stand_in.py`. Traffic comes and goes, so cards
move. Three of four kills wait for a move. After each one the pool has to be whole again: the processes are those of `cards.json`, and no move waits.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pool.supervised import POOL
from commands.cards.records import PoolRecord, read_record
from tests.worlds.paths import ROOT

_QUIET, _BUSY = 16.0, 100.0
"""Requests in flight; a card carries 32."""
_SWING_SECONDS, _WHOLE_SECONDS, _MOVE_SECONDS = 25.0, 60.0, 90.0
_LOOK_SECONDS = 0.02


def run(num_kills: int, seed: int = 1) -> dict[str, Any]:
    """The figures of so many kills."""
    chance, seconds, in_a_move, killed = random.Random(seed), list[float](), 0, dict[str, int]()  # noqa: S311 which one dies is no secret
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        (home / "load").write_text(str(_QUIET))
        stack.enter_context(_traffic(home))
        drill = _Drill(home)
        stack.callback(drill.end)
        drill.start()
        seconds_first = drill.whole()
        for number in range(num_kills):
            if number % 4:
                in_a_move += drill.wait_for_move()
                time.sleep(chance.uniform(0.0, 2.0))
            else:
                time.sleep(chance.uniform(0.0, 3.0))
            name = drill.kill(chance)
            killed[name] = killed.get(name, 0) + 1
            seconds.append(drill.whole())
            print(f"{number + 1} of {num_kills}: {name} killed, whole again after {seconds[-1]:.1f} s", file=sys.stderr)
        record = drill.record()
        violations = (home / "violations").read_text().splitlines() if (home / "violations").exists() else []
        moves = drill.moves
    return {
        "kills": num_kills, "killed": killed, "kills_in_a_move": in_a_move, "moves": moves, "cards_with_two_holders": len(violations),
        "fewest_replicas": drill.fewest, "floor": POOL.floor, "seconds_until_whole": {"first": seconds_first, "largest": max(seconds)},
        "left_in_a_move": record.move is not None,
    }  # fmt: skip


class _Drill:
    """One home and its supervisor."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self.moves, self.fewest, self._seen = 0, len(POOL.pool), ""
        self._killed = set[int]()
        """Processes that the last kill ended."""

    def start(self) -> None:
        """Start the supervisor."""
        command = [sys.executable, "-m", "benchmarks.pool.supervised", str(self._home)]
        with (self._home / "supervisor.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)  # noqa: S603 our own module

    def record(self) -> PoolRecord:
        """What is written down; each look counts moves and replicas."""
        found = read_record(self._home) or PoolRecord(cards=())
        if found.cards:
            self.fewest = min(self.fewest, len(found.of("users")))
        split = f"{found.of('users')} {found.of('training')}"
        self.moves += self._seen not in {"", split}
        self._seen = split
        return found

    def wait_for_move(self) -> bool:
        """Until one is under way; False: none came."""
        until = time.monotonic() + _MOVE_SECONDS
        while time.monotonic() < until:
            if self.record().move is not None:
                return True
            time.sleep(_LOOK_SECONDS)
        return False

    def kill(self, chance: random.Random) -> str:
        """End the supervisor or one of the processes on cards as a power cut would. A killed supervisor is started again at once. Returns who."""
        holders = self._holders()
        name = chance.choice(["supervisor", *sorted({who for _, who in holders.values()})])
        self._killed = {process for process, who in holders.values() if name in {"supervisor", who}}
        if name == "supervisor" and self._process is not None:
            self._process.kill()
            self._process.wait()
            self.start()
            return name
        process = chance.choice(sorted(self._killed))
        self._killed = {process}
        with contextlib.suppress(ProcessLookupError):  # it ended in order just now
            os.kill(process, signal.SIGKILL)
        return name

    def whole(self) -> float:
        """Seconds until each card is held by whom `cards.json` names and no move waits. Raises SystemExit: it takes too long."""
        began = time.monotonic()
        while (took := time.monotonic() - began) < _WHOLE_SECONDS:
            record, holders = self.record(), self._holders()
            wanted = dict.fromkeys(record.of("users"), "engine") | dict.fromkeys(record.of("training"), "training")
            is_new = self._killed.isdisjoint(process for process, _ in holders.values())
            if (
                wanted
                and is_new
                and record.move is None
                and wanted == {card: who for card, (_, who) in holders.items()}
            ):
                return round(took, 2)
            time.sleep(_LOOK_SECONDS)
        raise SystemExit(
            f"not whole after {took:.0f} s: {record} {holders}; {(self._home / 'supervisor.log').read_text()[-2000:]}"
        )

    def end(self) -> None:
        """End the supervisor; its children end with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        until = time.monotonic() + _WHOLE_SECONDS
        while self._holders() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    def _holders(self) -> dict[int, tuple[int, str]]:
        """By card: process and name of whoever computes on it, of those that live."""
        found = {}
        for path in self._home.glob("in-use-*"):
            name, _, number = path.read_text().partition(" ")
            with contextlib.suppress(ValueError, OSError):
                if Path(f"/proc/{int(number)}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(path.name.rpartition("-")[2])] = (int(number), name)
        return found


@contextlib.contextmanager
def _traffic(home: Path) -> Iterator[None]:
    """Users come and go until the end of the block."""
    stop = threading.Event()

    def swing() -> None:
        load = _QUIET
        while not stop.wait(_SWING_SECONDS):
            load = _BUSY if load == _QUIET else _QUIET
            temporary = home / "load.new"
            temporary.write_text(str(load))
            temporary.replace(home / "load")

    thread = threading.Thread(target=swing)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
