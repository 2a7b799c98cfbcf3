"""The serving API killed, and its weights swapped, in the middle of sessions: real processes, a few turns each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.worlds.paths import ROOT

pytestmark = pytest.mark.slow


_RUNS = {
    "kills": ["tests.adversary.kills", "sessions", "--kills", "2"],
    "swaps": ["benchmarks.sessions", "swaps", "--quick"],
}


@pytest.mark.parametrize("subject", _RUNS)
def test_sessions_go_on_and_nothing_is_lost_or_doubled(subject: str) -> None:
    command = [sys.executable, "-m", *_RUNS[subject], "--json"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603 our own module

    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    figures = json.loads(ran.stdout)
    assert figures["problems"] == {}
    assert figures["turns"]["extended"] > figures["turns"]["first"] > 0
    assert figures["tokens_saved" if subject == "swaps" else "saved"] > 0.5
