"""How much space is left on the disks that this process writes to, measured at each scrape."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from runtime.metrics import DISK_FREE_BYTES, DISK_SIZE_BYTES


def watch_disks(folders: Mapping[str, Path]) -> None:
    """Measure the disks of these folders (or of the nearest above), by name; one that several share once, under its first name."""
    seen = set[int]()
    for name, folder in folders.items():
        existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
        if (device := existing.stat().st_dev) not in seen:
            seen.add(device)
            DISK_FREE_BYTES.labels(name).set_function(partial(_measured, existing, "free"))
            DISK_SIZE_BYTES.labels(name).set_function(partial(_measured, existing, "total"))


def _measured(folder: Path, part: str) -> float:
    try:
        return float(getattr(shutil.disk_usage(folder), part))
    except OSError:  # the folder is gone; no number is more honest than an old one
        return math.nan
