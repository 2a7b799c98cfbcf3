"""The process that holds a lease, unlike any other (id, start, boot), and whether it died; another machine cannot be observed."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

_PROC = Path("/proc")
_DEAD = frozenset({"Z", "X", "x"})
"""States in `/proc/<pid>/stat` of a process that ended and that its parent has not reaped."""


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a lease, stored as JSON. Unknown fields of later releases are ignored."""

    host: str
    machine: str = ""
    """Machine id: tells machines of the same name apart. Empty if the system has none."""
    boot: str = ""
    """Boot id: changes with every start of the machine."""
    namespace: str = ""
    """Namespace of the process id: each container on a machine has its own."""
    pid: int
    started: float = 0.0
    """Start time of the process: ticks since the boot, or UTC epoch seconds where there is no /proc."""
    instance: str
    """Tells two holders in one process apart."""
    since: float = 0.0
    """UTC epoch seconds by the database's clock."""
    lifetime: float = 0.0
    """Seconds without a renewal after which the lease expires."""
    released: bool = False

    @property
    def name(self) -> str:
        """For messages: where the process runs and since when it holds the lease."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host}, since {since} UTC"


def this_process() -> LeaseHolder:
    """A new holder in this process."""
    pid = os.getpid()
    return LeaseHolder(
        host=socket.gethostname(),
        machine=_told(Path("/etc/machine-id").read_text),
        boot=_told((_PROC / "sys/kernel/random/boot_id").read_text),
        namespace=_told((_PROC / "self/ns/pid").readlink),
        pid=pid,
        started=_started(pid) or 0.0,
        instance=uuid.uuid4().hex,
    )


def is_dead(holder: LeaseHolder) -> bool:
    """True only if it is certain: the holder ran on this machine, and ended or started before the last boot."""
    here = this_process()
    if (holder.host, holder.machine) != (here.host, here.machine):
        return False
    if holder.boot != here.boot:
        return True
    return holder.namespace == here.namespace and _started(holder.pid) != holder.started


def _started(pid: int) -> float | None:
    if not (_PROC / "self" / "stat").exists():
        return _started_without_proc(pid)
    try:
        # The second field is the name in brackets, which may itself contain spaces and brackets.
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


def _told(read: Callable[[], object]) -> str:
    try:
        return str(read()).strip()
    except OSError:
        return ""
