"""`millrace import` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.home import prepare_home
from contracts.topics import GENERATIONS
from examples.demo.command import PRODUCT
from runtime.settings import Settings
from services.provider import ProviderSettings
from tests.command_line import Ran, run_here
from tests.fakes import everything

ROW = {
    "id": "r1",
    "messages": [{"role": "user", "content": "a table"}],
    "answer": '{"party": 2}',
    "at": 1_750_000_000,
    "user": "ann",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    tasks, base = (PRODUCT / "task.toml",), str(PRODUCT / "base")
    return prepare_home(
        Settings(home=tmp_path / "home", run="r", policy="reservations", base=base, tasks=tasks), {}
    ).settings


def run(settings: Settings, *arguments: str) -> Ran:
    return run_here("import", *arguments, "--home", str(settings.home))


def num_logged(settings: Settings) -> int:
    log = settings.event_log()
    num = len(everything(log, GENERATIONS))
    log.close()
    return num


def test_a_dry_run_an_import_a_second_one_and_its_end(settings: Settings, tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    context = 100_000  # longer than that of the example's policy
    export.write_text("\n".join(map(json.dumps, [ROW | {"edit": "so " * context}, {"answer": 1}])))
    dry = run(settings, str(export), "--from", "jsonl", "--dry-run")
    assert (dry.returncode, num_logged(settings)) == (0, 0), dry
    for said in ("refused", "no_messages 1", "edit: edit_too_long 1", "persons", "nothing was written"):
        assert said in dry.stdout
    first = run(settings, str(export), "--from", "jsonl")
    import_id = first.stdout.split()[-1]
    assert f"imported already, as {import_id}" in run(settings, str(export), "--from", "jsonl").stdout
    assert num_logged(settings) == 1
    assert "1 rows become quarantined(import)" in run(settings, "undo", import_id).stdout
    assert "was taken back already" in run(settings, "undo", import_id).stdout
    again = run(settings, str(export), "--from", "jsonl")
    assert again.stdout.split()[-1] != import_id


def test_a_home_whose_answers_a_provider_gives_takes_an_import(tmp_path: Path) -> None:
    front = ProviderSettings(url="http://127.0.0.1:1/v1", model="gpt-x", key_from="NONE")
    settings = Settings(home=tmp_path / "home", run="r", policy="gpt-x", base="", tasks=(PRODUCT / "task.toml",))
    prepare_home(settings, {"provider": front})
    (tmp_path / "export.jsonl").write_text(json.dumps(ROW | {"edit": '{"party": 3}'}))
    assert run(settings, str(tmp_path / "export.jsonl"), "--from", "jsonl").returncode == 0
    assert num_logged(settings) == 1


def test_what_cannot_be_meant_is_refused_by_name(settings: Settings) -> None:
    for arguments, said in (
        (["none.jsonl", "--from", "csv"], "formats are langfuse, openai, litellm, otel, jsonl"),
        (["none.jsonl"], "--from FORMAT"),
        (["none.jsonl", "--from", "jsonl"], "No such file"),
        (["none.jsonl", "--from", "jsonl", "--task", "other"], "no task is called 'other'"),
        (["none.jsonl", "--from", "jsonl", "--map", "mood=score"], "--map takes NAME=PATH"),
        (["undo", "ab12"], "has no import 'ab12'"),
    ):
        ran = run(settings, *arguments)
        assert (ran.returncode, said in ran.stderr) == (1, True), ran
