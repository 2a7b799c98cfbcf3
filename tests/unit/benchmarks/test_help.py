"""Each benchmark explains itself: `--help` works, and names the command."""

import subprocess
import sys

import pytest

from benchmarks.paths import ROOT

BY_NAME = ("gateway.outage", "log.bad_records", "rewards.sandbox")
FOLDERS = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))


def test_every_folder_is_a_command() -> None:
    folders = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__init__.py")}
    assert folders == {*FOLDERS}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FOLDERS, *BY_NAME])
def test_help(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"usage: python -m benchmarks.{name} ")
