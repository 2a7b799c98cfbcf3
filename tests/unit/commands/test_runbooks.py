"""Every command that an alarm's entry in docs/watching.md names is run against a real home, so that nobody is told at night to run what does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commands.home import prepare_home
from contracts.event_log import Message
from contracts.topics import GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from runtime.settings import Settings, load_settings
from runtime.worker import Worker
from tests.command_line import run_here as millrace

ROOT = Path(__file__).parent.parent.parent.parent
PRODUCT = ROOT / "examples" / "reservations"
RUNBOOK = (ROOT / "docs" / "watching.md").read_text().partition("\n## Alarms\n")[2]
STARTS_PROCESSES = {"up"}
"""Run by the tests of their own."""
ENDS = {
    "audit": (1, "could not be processed by episodes"),
    "policy promote N": (1, "has no version 7"),
    "policy rollback": (1, "there is no older version"),
    "policy webhook-test": (1, "names no URL"),
    "policy withdraw N": (1, "v7"),
    "training replay": (1, "bundle"),
}
"""Where an embedded home in which nothing happened gives another status than 0: that one, and what it says."""
PLACEHOLDERS = {"N": "7", "PROCESS": "episodes"}


def named_commands() -> list[str]:
    found = re.findall(r"`(?:millrace ([^`]*)|(policy [^`]*))`", RUNBOOK)
    return sorted({whole or part for whole, part in found} - STARTS_PROCESSES)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared as `millrace up` does it, with one record that nobody can read."""
    settings = Settings(
        home=tmp_path_factory.mktemp("runbooks") / "home",
        run="r",
        policy="reservations",
        base=str(PRODUCT / "base"),
        tasks=(PRODUCT / "task.toml",),
    )
    prepare_home(settings, {})
    event_log = load_settings(settings.home).event_log()
    event_log.append([Message(GENERATIONS, 0, "chatcmpl-none:0", b"\x91")])
    Worker(EpisodesHandler({}), settings.database(), event_log).step()
    event_log.close()
    return settings.home


def test_the_runbook_names_commands() -> None:
    assert len(named_commands()) >= 15
    assert ENDS.keys() <= set(named_commands())


@pytest.mark.parametrize("command", named_commands())
def test_a_command_of_the_runbook_runs(home: Path, command: str) -> None:
    words = [PLACEHOLDERS.get(word, word) for word in command.split()]
    ran = millrace(*words, *([str(home)] if command == "training replay" else ["--home", str(home)]))
    status, says = ENDS.get(command, (0, ""))
    assert ran.returncode == status, ran
    assert says in ran.stdout + ran.stderr
