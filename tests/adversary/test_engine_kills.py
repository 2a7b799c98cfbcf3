"""SIGKILL at random moments of a real engine on its way to a version: it serves one of two versions, and gets there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.paths import ROOT


@pytest.mark.slow
def test_a_killed_engine_serves_one_of_two_versions_and_fetches_nothing_twice(tmp_path: Path) -> None:
    # A process of its own: engines are forked from it, and pytest has threads.
    command = [sys.executable, "-m", "tests.adversary.kills", "engine", "--kills", "2", "--forked", "--checked", "15"]
    ran = subprocess.run(  # noqa: S603 our own module
        [*command, "--folder", str(tmp_path), "--json"], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["problems"] == []
    assert sum(figures["kills"].values()) == 2
    assert figures["labels"]["checked"] > figures["labels"]["told_apart"] > 0
    assert figures["fetched_bytes"] < figures["full_bytes"] / 10
    assert list(tmp_path.iterdir()) == []
