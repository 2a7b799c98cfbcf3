"""SIGKILL at random moments of publishing and of bringing a version: always exactly one of two versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.paths import ROOT


@pytest.mark.slow
def test_a_version_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    # A process of its own: children are forked from it, and pytest has threads.
    ran = subprocess.run(  # noqa: S603 our own module
        [sys.executable, "-m", "tests.adversary.kills", "weights", "--kills", "3", "--folder", str(tmp_path), "--json"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["problems"] == []
    assert figures["kills"] == {"publisher": 3, "replica": 3}
    assert figures["fetched_bytes"] < figures["full_bytes"] / 2
    assert list(tmp_path.iterdir()) == []
