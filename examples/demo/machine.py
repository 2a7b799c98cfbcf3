"""What a demo's machine had to give: its cores, and how much of them the demo and other programs used."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psutil

_PROBE_SECONDS = 0.5
_PROBE = "import time; end = time.monotonic() + {}\nwhile time.monotonic() < end: pass\nprint(time.process_time())"


class MachineUse:
    """Counts processor time of this process and its descendants, and of everybody, on the cores that this process may use."""

    def __init__(self) -> None:
        self._cores: list[int] = sorted(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))
        self._first, self._first_busy, self._first_idle = self._own(), *self._everybody()
        self._seen = dict(self._first)

    def cores_given(self) -> float:
        """How many cores programs that compute get beside whatever else runs: a loop on each, for half a second."""
        command = [sys.executable, "-I", "-S", "-c", _PROBE.format(_PROBE_SECONDS)]
        loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in self._cores]  # noqa: S603 our own
        return sum(float(loop.communicate()[0]) for loop in loops) / _PROBE_SECONDS

    def look(self) -> None:
        """Note what descendants have used. Those that end later than the last look are counted up to it."""
        self._seen |= self._own()

    def figures(self) -> dict[str, Any]:
        """Cores, those that the demo and other programs kept busy in the mean, and the load of the last minute."""
        self.look()
        busy, idle = self._everybody()
        busy, idle = busy - self._first_busy, idle - self._first_idle
        seconds = max((busy + idle) / len(self._cores), 1e-9)
        own = sum(self._seen.values()) - sum(self._first.values())
        return {
            "cores": len(self._cores),
            "demo_cores": round(own / seconds, 2),
            "other_cores": round(max(0.0, busy - own) / seconds, 2),
            "load": round(psutil.getloadavg()[0], 1),
        }

    def _own(self) -> dict[tuple[int, float], float]:
        """Processor seconds, by process."""
        found: dict[tuple[int, float], float] = {}
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                times = process.cpu_times()
                found[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:  # it has just ended
                continue
        return found

    def _everybody(self) -> tuple[float, float]:
        """Busy and idle seconds of the cores, since the machine started."""
        times = psutil.cpu_times(percpu=True)
        each = [times[core] for core in self._cores if core < len(times)]
        idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in each)
        # The time of guests is part of `user`.
        return sum(core.user + core.nice + core.system for core in each), idle


def tell_machine(machine: dict[str, Any]) -> str:
    """The figures in a sentence."""
    return (
        f"This machine: {machine['cores']} cores, of which the demo kept {machine['demo_cores']} busy and other programs "
        f"{machine['other_cores']}; load {machine['load']}."
    )
