"""Whatever file an operator names, a command says in a line what is wrong with it: at once, and without swallowing it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from commands.home import Home
from commands.log import as_json, visible
from contracts.event_log import LogRecord
from contracts.topics import TOPICS
from runtime.settings import write_settings
from tests.command_line import run_here
from tests.fakes import BOOKING_TASK
from tests.hostile import BOMB, hostile
from tests.worlds.hostile_files import HOSTILE_FILES

TASK = """
name = "sums"
verifiers = [{name = "right", kind = "exact"}]
signals = {accepted = {type = "bool", labels = {true = 1.0, false = 0.0}}}
judges = [{name = "polite", role = "watch", url = "http://127.0.0.1:9/", model = "m", criteria = "Polite?"}]
"""
CASE = '{"messages": [{"role": "user", "content": "hi"}], "reference": "1"}\n'
COMMANDS = {
    "task of score": "score --task {bad}.toml",
    "config of score": "score --verifier exact --config {bad}.toml",
    "JSON config of score": "score --verifier exact --config {bad}.json",
    "task of gate": "gate --task {bad}.toml --sentinels {cases} --answers {answers} --against {answers}",
    "sentinels": "gate --task {task} --sentinels {bad}.jsonl --answers {answers} --against {answers}",
    "answers": "gate --task {task} --sentinels {cases} --answers {bad}.jsonl --against {answers}",
    "labels": "judge admit --task {task} --judge polite --labels {bad}.jsonl",
    "backup": "restore {bad} --home {folder}/home",
    "clients' list": "audit --home {home} --clients {bad}.jsonl",
}


@pytest.mark.parametrize("kind", HOSTILE_FILES)
@pytest.mark.parametrize("place", COMMANDS)
def test_a_hostile_file_is_named(place: str, kind: str, tmp_path: Path, home: Home) -> None:
    given = {"folder": tmp_path, "bad": tmp_path / "bad", "home": home.settings.home}
    for name, text in (("task", TASK), ("cases", CASE), ("answers", '{"completion": "1"}\n')):
        given[name] = tmp_path / f"{name}.toml"
        given[name].write_text(text)
    write_settings(home.settings, {})
    command = COMMANDS[place]
    bad = next(word for word in command.split() if "{bad}" in word).format(**given)
    HOSTILE_FILES[kind](Path(bad))
    ran = run_here(*(word.format(**given) for word in command.split()))
    assert ran.returncode in {1, 2}
    assert "Traceback" not in ran.stderr
    assert bad in ran.stderr
    assert len(ran.stderr) < 2_000


@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_hostile_settings_are_named(kind: str, tmp_path: Path) -> None:
    HOSTILE_FILES[kind](tmp_path / "millrace.toml")
    ran = run_here("keys", "api", "list", "--home", str(tmp_path))
    assert ran.returncode == 1
    assert f"{tmp_path}/millrace.toml" in ran.stderr
    assert len(ran.stderr) < 2_000


@pytest.mark.parametrize("topic", TOPICS)
def test_a_record_that_nobody_can_read_is_printed_all_the_same(topic: str) -> None:
    draw = random.Random(7)
    names = [BOOKING_TASK.name]
    records = [hostile(topic, draw, names).value for _ in range(300)]
    for value in [*records, BOMB, b"", b"\x91" * 100_000, b"\xc1"]:
        printed = as_json(LogRecord(topic=topic, partition=0, offset=0, key="k", value=value, appended_at=0.0))
        assert json.loads(json.dumps(printed))["key"] == "k"


def test_a_terminal_obeys_nothing_that_others_wrote() -> None:
    assert visible("a\x1b[31mb\x9b\r\u202e\n\tü") == "a\\x1b[31mb\\x9b\\r\\u202e\n\tü"
