"""Who holds something: one process, told apart from every other that ever ran, and whether it has died.

A process id alone is used again; with the process's start and the machine's boot it is not. What runs in another
container or on another machine cannot be looked at from here: whoever waits for it waits until its lease is over.
"""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

_PROC = Path("/proc")
_DEAD = frozenset({"Z", "X", "x"})
"""States in `/proc/<pid>/stat` of a process that runs no more and whose parent has not asked after it."""


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds something, as JSON in the database. Unknown fields of later versions are ignored."""

    host: str
    machine: str = ""
    """What tells apart machines of the same name; empty where nothing does."""
    boot: str = ""
    """Of the machine: changes with every start of it."""
    namespace: str = ""
    """In which the process id counts: containers on one machine each have their own."""
    pid: int
    started: float = 0.0
    """Of the process: ticks since the boot, or UTC epoch seconds where there is no /proc."""
    instance: str
    """Tells apart two holders in one process."""
    since: float = 0.0
    """UTC epoch seconds by the database's clock."""
    lifetime: float = 0.0
    """Seconds without a renewal after which it counts as gone."""
    released: bool = False

    @property
    def name(self) -> str:
        """For people: where it runs and since when it holds."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host}, since {since} UTC"


def this_process() -> LeaseHolder:
    """A new holder in this process."""
    pid = os.getpid()
    return LeaseHolder(
        host=socket.gethostname(),
        machine=_line(Path("/etc/machine-id")),
        boot=_line(_PROC / "sys/kernel/random/boot_id"),
        namespace=_namespace(),
        pid=pid,
        started=_started(pid) or 0.0,
        instance=uuid.uuid4().hex,
    )


def is_dead(holder: LeaseHolder) -> bool:
    """True only if it is certain: it ran on this machine, and is there no more or was before the last boot."""
    here = this_process()
    if (holder.host, holder.machine) != (here.host, here.machine):
        return False
    if holder.boot != here.boot:
        return True
    return holder.namespace == here.namespace and _started(holder.pid) != holder.started


def _started(pid: int) -> float | None:
    """When a process began; None if none with this id runs."""
    if not (_PROC / "self" / "stat").exists():
        return _started_without_proc(pid)
    try:
        # The second field is the name in brackets, which may hold blanks and brackets itself.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in _DEAD else float(fields[19])


def _started_without_proc(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
