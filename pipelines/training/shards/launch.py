"""Starts the processes of one trainer on this machine, and starts all of them again after one died.

    millrace training --processes N ──▶ rank 0, rank 1, ...: the same command, each with the environment that torchrun gives

Waits for: a rank to end. The others are of no use without it, and are killed at once: what rank 0 decided is in its checkpoint and journal.
Several machines need `torchrun`, which lets their processes find each other. On one machine this is less: nothing here imports torch, rank 0
keeps the socket of its operations, and exit status 2 (a person has to look) is not tried again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runtime.listening import REPLICA, held_descriptors
from runtime.operations import OPERATIONS_ADDRESS, OPERATIONS_FD

if TYPE_CHECKING:
    import threading

_LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.05
_FIRST_PAUSE, _LONGEST_PAUSE, _HEALTHY_AFTER = 0.2, 10.0, 60.0
_LAST_WORDS_SECONDS = 10.0
"""How long the others have to end after rank 0 has."""
_CANNOT_START = 2
"""Exit status of a rank that a person has to look at."""


class EndedRank(NamedTuple):
    """The first rank that ended. `status`: as of `subprocess.Popen`, below 0 for a signal."""

    rank: int
    status: int

    @property
    def says(self) -> str:
        """For the operator."""
        how = f"signal {-self.status}" if self.status < 0 else f"status {self.status}"
        return f"rank {self.rank} ended with {how}"


def launch(command: Sequence[str], processes: int, stop: threading.Event, report: Callable[[str], None]) -> int:
    """Run `command` as this many ranks until rank 0 ends in order, or until `stop` is set and rank 0 has ended. Returns the exit status.

    `report`: called with each line for the operator.
    """
    pause = _FIRST_PAUSE
    while True:
        began = time.monotonic()
        ranks = _start(command, processes)
        try:
            ended = _first_end(ranks, stop)
        finally:
            _kill(ranks)
        if ended.status in {0, _CANNOT_START} or stop.is_set():
            return max(ended.status, 0)
        report(f"{ended.says}: the other ranks end too, and all {processes} start again")
        was_well = ended.status < 0 or time.monotonic() - began > _HEALTHY_AFTER  # whoever was killed did not fail
        pause = _FIRST_PAUSE if was_well else min(2 * pause, _LONGEST_PAUSE)
        stop.wait(pause)


def environment_of(rank: int, processes: int, port: int) -> dict[str, str]:
    """As torchrun gives it to a rank of one machine."""
    world = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    master = {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": str(port)}
    return {**os.environ, **world, **master, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def settle_rank(environment: MutableMapping[str, str]) -> None:
    """Of the ranks of one machine, only the first answers operators; each gives signs of life of its own. Not a rank: nothing changes."""
    if (local_rank := environment.get("LOCAL_RANK")) is None:
        return
    environment[REPLICA] = str(int(local_rank) + 1)
    if local_rank != "0":
        environment.pop(OPERATIONS_FD, None)
        environment.pop(OPERATIONS_ADDRESS, None)


def _start(command: Sequence[str], processes: int) -> list[subprocess.Popen[bytes]]:
    with socket.create_server((_LOOPBACK, 0)) as free:  # whoever takes the port until rank 0 does costs one more start
        port = free.getsockname()[1]
    operations = [int(os.environ[OPERATIONS_FD])] if OPERATIONS_FD in os.environ else []
    return [
        # A rank ends when its standard input closes, so that nothing outlives this process if it is killed.
        subprocess.Popen(  # noqa: S603 our own interpreter and script
            command, stdin=subprocess.PIPE, env=environment_of(rank, processes, port), process_group=0,
            pass_fds=[*(operations if rank == 0 else ()), *held_descriptors()],
        )
        for rank in range(processes)
    ]  # fmt: skip


def _first_end(ranks: Sequence[subprocess.Popen[bytes]], stop: threading.Event) -> EndedRank:
    """Wait until rank 0 ends, or another one otherwise than in order. `stop` is told to rank 0, and rank 0 tells the others."""
    is_told = False
    while True:
        if stop.is_set() and not is_told:
            ranks[0].terminate()
            is_told = True
        ends = [EndedRank(rank, status) for rank, process in enumerate(ranks) if (status := process.poll()) is not None]
        # One that was killed explains those that failed because of it.
        for ended in sorted(ends, key=lambda item: item.status):
            if ended.rank == 0 or (ended.status and not is_told):
                return ended
        time.sleep(_LOOK_SECONDS)


def _kill(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what is left: those that rank 0 has told to end have a moment for it."""
    until = time.monotonic() + (_LAST_WORDS_SECONDS if ranks[0].poll() == 0 else 0.0)
    for process in ranks:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
