"""Each benchmark explains itself: `--help` works, and names the command."""

import json
import subprocess
import sys

import pytest

from benchmarks.paths import ROOT

BY_NAME = ("gateway.outage", "log.bad_records", "rewards.sandbox")
FOLDERS = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))
ASK_ALL = """
import contextlib, io, json, runpy, sys
said = {}
for name in sys.argv[1:]:
    sys.argv, printed = [name, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as end:
        said[name] = [end.code, printed.getvalue()]
print(json.dumps(said))
"""


def test_every_folder_is_a_command() -> None:
    folders = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__init__.py")}
    assert folders == {*FOLDERS}


@pytest.fixture(scope="module")
def said() -> dict[str, tuple[int, str]]:
    """By benchmark: status and output. One process asks all of them, since most of them load torch."""
    command = [sys.executable, "-c", ASK_ALL, *FOLDERS, *BY_NAME]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    assert ran.returncode == 0, ran.stderr
    return {name: tuple(found) for name, found in json.loads(ran.stdout).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FOLDERS, *BY_NAME])
def test_help(name: str, said: dict[str, tuple[int, str]]) -> None:
    status, printed = said[name]
    assert status == 0
    assert printed.startswith(f"usage: python -m benchmarks.{name} ")
