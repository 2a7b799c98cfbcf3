"""Each benchmark explains itself: `--help` works, and names the command."""

import runpy
import sys

import pytest

from benchmarks.paths import ROOT

BY_NAME = ("gateway.outage", "log.bad_records", "rewards.sandbox")
FOLDERS = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))


def test_every_folder_is_a_command() -> None:
    folders = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__init__.py")}
    assert folders == {*FOLDERS}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries, and that another test has imported it
@pytest.mark.parametrize("name", [*FOLDERS, *BY_NAME])
def test_help(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, since most of them load torch."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m benchmarks.{name} ")
