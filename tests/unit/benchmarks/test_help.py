"""Each benchmark and each attack explains itself: `--help` works, and names the command."""

import runpy
import sys

import pytest

from tests.worlds.paths import ROOT

HOUSES = ("benchmarks", "tests/adversary")
FOLDERS = [path.parent for house in HOUSES for path in sorted((ROOT / house).glob("*/__main__.py"))]
COMMANDS = [".".join(folder.relative_to(ROOT).parts) for folder in FOLDERS]
BY_NAME = ("benchmarks.rewards.sandbox", "tests.adversary.choosing", "tests.adversary.outage")


def test_every_folder_is_a_command() -> None:
    assert {path.parent for house in HOUSES for path in (ROOT / house).glob("*/__init__.py")} == {*FOLDERS}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries, and that another test has imported it
@pytest.mark.parametrize("name", [*COMMANDS, *BY_NAME])
def test_help(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, since most of them load torch."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m {name} ")
