"""Puts the process `release` together: gate and train, with the graders and marks of `rewards`. Siblings do not import each other."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from pipelines.release import __main__ as release
from rewards.gating import FastMarks, GateGraders


def main(home: Path, stop: threading.Event) -> None:
    """Judge candidates until `stop` is set."""
    release.main(home, stop, GateGraders, partial(GateGraders, with_reference=False), FastMarks)
