"""All usable cores, by threads alone: the codec's loops, blake3, zstd and numpy let go of the interpreter while they work."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

MOST_THREADS = 16
"""More did not make an encoder faster."""
SMALL_BYTES = 2**22
"""Below this much work the caller does it alone: other threads would cost more than they save."""
_NICENESS = 4
"""Of helpers. Much lower, a caller on a busy machine would wait for what a helper has begun."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The limit of our own group in a container (cgroup v2): microseconds, or `max`, per period."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@functools.cache
def num_cores(quota: Path = _QUOTA) -> int:
    """The number of cores that this process may use, at least one. A container's limit counts too: work beyond it is held up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):  # no such file: no limit
        return cores
    return cores if limit == "max" else max(1, min(cores, int(limit) // int(period)))


class _Limit:
    """Threads that work at the same time, the caller's included; None: one a core."""

    threads: int | None = None


@contextmanager
def limited_to(threads: int) -> Iterator[None]:
    """Take this many threads in the whole process, for as long as this lasts."""
    before, _Limit.threads = _Limit.threads, threads
    try:
        yield
    finally:
        _Limit.threads = before


def each(work: Callable[[_Item], _Result], items: Sequence[_Item], sizes: Sequence[int]) -> list[_Result]:
    """The results of `work`, in the order of the items; `sizes`: about how many bytes each is. The largest begin first.

    The caller works too, and takes what no other thread has begun. So work may itself call `each`, and nobody waits for a thread
    that is busy with something else. Raises what `work` raised for the largest item that failed.
    """
    if len(items) == 1 or sum(sizes) < SMALL_BYTES:
        return [work(item) for item in items]
    order = sorted(range(len(items)), key=lambda number: -sizes[number])
    results: dict[int, _Result] = {}
    failures: dict[int, BaseException] = {}
    numbers = iter(order)  # the interpreter gives each number to one thread

    def take() -> None:
        for number in numbers:
            try:
                results[number] = work(items[number])
            except BaseException as error:  # noqa: BLE001 it is raised below, in the caller
                failures[number] = error
            if failures:
                return

    threads = _Limit.threads or min(num_cores(), MOST_THREADS)
    try:
        helpers = [_pool(threads).submit(take) for _ in range(min(threads, len(order)) - 1)]
    except RuntimeError:  # the interpreter is ending, and starts no more threads
        helpers = []
    take()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    if failures:
        raise failures[min(failures, key=order.index)]
    return [results[number] for number in range(len(order))]


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "cores", initializer=_step_back)


def _step_back() -> None:
    """Take only time that others leave: an engine on this machine serves users meanwhile."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), _NICENESS))
