"""What is said before a start about silence: where it is paid for, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.home import prepare_home
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.preflight import check_tasks, propose_expected
from runtime.database import Database
from runtime.settings import Settings
from tests.worlds.crowd import BLAND, GRADED, HELPFUL, SilentCrowd, Style

ROOT = Path(__file__).parents[3]
UNLABELLED = GRADED | {"silence": "unlabelled"}
FILE = """name = "chat"
silence = "{silence}"
[signals.thumbs]
type = "label"
labels = {{ up = 1.0, down = 0.0 }}
[[verifiers]]
name = "right"
kind = "exact"
role = "component"
weight = 0.5
"""


def task_file(folder: Path, silence: str) -> Path:
    path = folder / "task.toml"
    path.write_text(FILE.format(silence=silence))
    return path


def told(task: Task, database: Database) -> list[str]:
    lines: list[str] = []
    propose_expected({task.name: task}, database, lines.append)
    return lines


def test_paying_for_silence_is_warned_of_by_file_and_line(tmp_path: Path) -> None:
    lines: list[str] = []
    path = task_file(tmp_path, "renormalise")
    check_tasks((path,), "http://127.0.0.1:1", lines.append)
    (line,) = lines
    assert line.startswith(f"{path}:2: warning: ")
    assert "pays for answers that nobody reacts to" in line


@pytest.mark.parametrize("silence", ["unlabelled", "expected"])
def test_who_pays_for_nothing_is_told_nothing(tmp_path: Path, silence: str) -> None:
    lines: list[str] = []
    check_tasks((task_file(tmp_path, silence),), "http://127.0.0.1:1", lines.append)
    assert lines == []


def test_a_home_is_told_what_share_of_graded_answers_is_lost(tmp_path: Path, database: Database) -> None:
    path = task_file(tmp_path, "unlabelled")
    (task,) = load_tasks((path,)).values()
    crowd = SilentCrowd(database, UNLABELLED)
    crowd.talk((HELPFUL, BLAND), 1)
    crowd.close()
    (line,) = told(task, database)
    assert line.startswith(f"{path}:2: of the last 200 answers")
    assert "65% have no reward" in line
    assert 'silence = "expected"' in line


@pytest.mark.slow
def test_a_word_that_came_later_is_no_loss(database: Database) -> None:
    crowd = SilentCrowd(database, UNLABELLED)
    for _ in range(120):
        turn = crowd.answer(HELPFUL)
        crowd.hear([crowd.episode(turn)])
        crowd.hear([crowd.episode(turn, crowd.word(turn, happy=True), revision=2)])
    crowd.close()
    assert told(crowd.task, database) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"silence": "expected"},
        {"silence": 0.0},
        {"verifiers": [{"name": "right", "kind": "json_schema", "config": {"schema": {}}}]},  # only the form
        {"verifiers": [{"name": "right", "kind": "exact", "role": "watch"}]},
        {"name": "another"},
    ],
)
def test_nothing_is_proposed_where_it_would_not_help(database: Database, changes: dict[str, object]) -> None:
    crowd = SilentCrowd(database, UNLABELLED)
    crowd.talk((BLAND,), 2)
    crowd.close()
    assert told(Task.model_validate(UNLABELLED | changes), database) == []


def test_what_a_gate_refused_is_not_lost(database: Database) -> None:
    gated = UNLABELLED | {"verifiers": [{"name": "right", "kind": "exact", "role": "gate"}]}
    crowd = SilentCrowd(database, gated)
    crowd.talk((Style("wrong", 0.5, 0.0, text="41"),), 2)
    assert told(crowd.task, database) == []
    crowd.talk((BLAND,), 1)
    crowd.close()
    (line,) = told(crowd.task, database)
    assert "90% have no reward" in line


def test_a_start_of_a_home_that_stood_before_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        home=tmp_path / "home", run="r", policy="p", base=str(ROOT / "examples" / "reservations" / "base"),
        tasks=(task_file(tmp_path, "unlabelled"),),
    )  # fmt: skip
    prepare_home(settings, {})
    assert "have no reward" not in capsys.readouterr().out
    database = settings.database()
    crowd = SilentCrowd(database, UNLABELLED)
    crowd.talk((BLAND,), 1)
    crowd.close()
    database.close()
    prepare_home(settings, {})
    assert "90% have no reward, because nobody reacted to them" in capsys.readouterr().out
