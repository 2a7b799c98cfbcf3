"""Disks of a home, and its clock. In: folders, signs of life. Out: findings. Waits for: the disk and the database."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from commands.findings import Finding
from contracts import heartbeats
from contracts.errors import MillraceError
from runtime.clocks import MOST_SECONDS
from runtime.settings import Settings

_GIB = 2**30
_SPARE_BYTES = 2 * _GIB
"""For the log, the database and whatever else grows between two looks."""


def disk_findings(settings: Settings) -> Iterator[Finding]:
    """One finding per disk that the home writes to: it needs room for two more checkpoints, and can run out of names."""
    folders = {"home": settings.home, "checkpoints": settings.checkpoints, "spool": settings.home / "spool"}
    if settings.weights_url is None:
        folders["weights"] = settings.weights
    seen = set[int]()
    for name, folder in folders.items():
        if not folder.exists() or (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        yield _disk(name, folder, 2 * _newest_checkpoint(settings.checkpoints) + _SPARE_BYTES)


def _disk(name: str, folder: Path, needed: int) -> Finding:
    free, size = shutil.disk_usage(folder).free, shutil.disk_usage(folder).total
    says = f"{folder}: {free / _GIB:.1f} GiB of {size / _GIB:.0f} free"
    if free < needed:
        says += (
            f", and two more checkpoints with room to spare take {needed / _GIB:.1f}: make it larger, or lower checkpoint_keep in "
            "[training], or delete bundles/"
        )
        return Finding(f"disk {name}", False, True, says)
    return Finding(f"disk {name}", True, False, says)


def _newest_checkpoint(folder: Path) -> int:
    """Bytes of the newest checkpoint; 0 without one."""
    newest = max(folder.glob("checkpoint-*"), default=None)
    return 0 if newest is None else sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


def clock_findings(settings: Settings) -> Iterator[Finding]:
    """Whether a process has signed with a later time than this machine has: then one of the clocks is wrong."""
    now = time.time()
    try:
        with settings.snapshot() as connection:
            beats = heartbeats.read(connection, settings.policy)
    except MillraceError as error:
        yield Finding("clocks", False, False, error.message)
        return
    ahead = {f"{beat.process} ({beat.replica})": beat.at - now for beat in beats if beat.at - now > MOST_SECONDS}
    for name, seconds in ahead.items():
        yield Finding(
            "clocks",
            False,
            True,
            f"{name} signed {seconds:.0f} s in the future: its clock is ahead of this machine's; set both (timedatectl set-ntp true)",
        )
    if not ahead:
        yield Finding("clocks", True, False, f"no process is ahead of this machine by more than {MOST_SECONDS:.0f} s")
