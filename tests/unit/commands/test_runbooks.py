"""Every command that an alarm's entry in docs/watching.md names is run against a real home, so that nobody is told at night to run what does not exist; every command of the other pages has its subcommand and options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from commands.home import prepare_home
from contracts.event_log import Message
from contracts.topics import GENERATIONS
from millrace import COMMANDS, load
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
_MANUAL = ("operating", "watching", "repair", "settings", "release", "rewards", "engines")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _MANUAL)]
NAMED = re.compile(r"`millrace ([a-z][^`]*)`|^(?: {4,}|\$ )?millrace ([a-z].*)$", re.MULTILINE)


def named_commands() -> list[str]:
    found = re.findall(r"`(?:millrace ([^`]*)|(policy [^`]*))`", RUNBOOK)
    return sorted({whole or part for whole, part in found} - STARTS_PROCESSES)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared as `millrace up` does it, with one record that nobody can read."""
    home, base = tmp_path_factory.mktemp("runbooks") / "home", str(PRODUCT / "base")
    settings = Settings(home=home, run="r", policy="reservations", base=base, tasks=(PRODUCT / "task.toml",))
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


def named(page: Path) -> list[str]:
    """Commands of a page, without `millrace`, comments and brackets."""
    text = re.sub(r"\\\n *", " ", page.read_text())
    found = (" ".join((span or line).split()) for span, line in NAMED.findall(text))
    return sorted({re.sub(r"[\[\],]| (?:#|<|&&).*", "", command) for command in found})


def unknown(command: str) -> list[str]:
    """Words of a command that the command line does not have."""
    first, *words = command.split()
    if first not in COMMANDS:
        return [first]
    at: Any = load(first)
    while words and words[0] in getattr(at, "commands", {}):
        at = at.commands[words.pop(0)]
    if getattr(at, "commands", {}) and words and not words[0].startswith("-"):
        return [words[0]]
    options = {
        "--help",
        *(option for parameter in at.params for option in (*parameter.opts, *parameter.secondary_opts)),
    }
    given = [word.partition("=")[0] for word in words if word.startswith("--") and word.strip("-")]
    return [option for option in given if option not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page: Path) -> None:
    commands = named(page)
    assert commands
    assert {command: missing for command in commands if (missing := unknown(command))} == {}


@pytest.mark.parametrize("command", ["undo", "policy undo", "policy rollback --at N", "keys api new --tenat NAME"])
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert unknown(command)
