"""The number of usable cores. A container's limit counts too: programs that wait for a core miss their deadlines and would be blamed."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The limit of our own group in a container (cgroup v2): microseconds, or `max`, per period."""


@functools.cache
def num_cores(quota: Path = _QUOTA) -> int:
    """The number of cores that this process may use, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):  # no such file: no limit
        return cores
    return cores if limit == "max" else max(1, min(cores, int(limit) // int(period)))
