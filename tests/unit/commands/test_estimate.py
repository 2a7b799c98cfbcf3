from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from commands.estimate import _accuracy, run_estimate, table_of
from contracts.database import Database
from contracts.errors import InvalidSettings
from contracts.tasks.loading import load_tasks
from rewards.judges.identity import identity_of
from rewards.signals.audit import Accuracy, Known
from rewards.signals.estimates import sums_of
from rewards.signals.weighing import Weighing
from tests.unit.rewards.judges.figures import FIGURES
from tests.unit.rewards.signals.crowds import NOW, a_task, an_item, weigh

TASK = """name = "chat"
window_seconds = 600
[signals.thumbs]
type = "label"
labels = { up = 1.0, down = 0.0 }
"""
AUDITED = """
[audit]
judge = "auditor"
[[judges]]
name = "auditor"
role = "watch"
url = "http://127.0.0.1:1/v1"
model = "m"
criteria = "good?"
"""
JUDGE = {"name": "auditor", "role": "watch", "url": "http://127.0.0.1:1/v1", "model": "m", "criteria": "good?"}


def a_home(folder: Path, migrated: Path, task: str) -> Path:
    (folder / "task.toml").write_text(task)
    lines = ["[millrace]", f'home = "{folder}"', 'run = "r"', 'policy = "chat"', 'base = "base"']
    (folder / "millrace.toml").write_text("\n".join([*lines, f'tasks = ["{folder / "task.toml"}"]']) + "\n")
    (folder / "millrace.db").write_bytes(migrated.read_bytes())
    return folder


def test_each_version_is_shown_by_those_who_spoke_and_corrected(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    spoke = [an_item(number, f"u{number}", float(number % 10 != 0), version=3) for number in range(100)]
    silent = [
        an_item(100 + number, None, None, version=3, audited=0.0 if number % 20 == 0 else None) for number in range(100)
    ]
    database = Database(f"sqlite:///{home / 'millrace.db'}")
    weigh(database, Weighing({"chat": a_task(audit={"judge": "auditor"}, judges=[JUDGE])}, lambda: NOW), spoke + silent)
    database.close()
    known = run_estimate(home, "chat")[3]
    assert (known.predicted.num, known.said.num, known.difference.num) == (200, 100, 5)
    assert known.corrected.value == pytest.approx(0.7 - 0.5)
    printed = capsys.readouterr().out
    assert "mean of 100 people over all versions, each counted once: 0.900" in printed


def test_rewards_are_shown_in_the_range_of_the_task() -> None:
    known = Known(sums_of([1.0] * 50 + [0.5] * 50), sums_of([0.5] * 200), sums_of([0.25]))
    task = a_task(reward={"low": -1.0, "high": 1.0})
    row = [next(iter(column.cells)) for column in table_of(task, {7: known}).columns]
    assert row == ["7", "200", "100", "1", "0.500  (0.402 to 0.598)", "too few"]


@pytest.mark.parametrize(
    ("differences", "words"),
    [([0.8, 0.8, 0.8], "too few"), ([-0.9, -0.9], "too few"), ([0.0, 1.2], "1.000  (0.000 to 1.000)")],
)
def test_no_estimate_lies_outside_the_range_of_rewards(differences: list[float], words: str) -> None:
    known = Known(predicted=sums_of([0.5] * 200), difference=sums_of(differences))
    row = [next(iter(column.cells)) for column in table_of(a_task(), {7: known}).columns]
    assert row[-1] == words


@pytest.mark.parametrize(
    ("name", "task", "says"),
    [("chat", TASK, r"add \[audit\] to .*task.toml:1"), ("talk", TASK, r"no task 'talk' in .*; there are \['chat'\]")],
)
def test_what_cannot_be_estimated_is_said(tmp_path: Path, migrated: Path, name: str, task: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        run_estimate(a_home(tmp_path, migrated, task), name)


def test_what_the_judge_itself_gets_wrong_is_corrected_where_it_was_measured(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    sums = sums_of([0.0] * 40 + [1.0] * 60)
    known = Known(predicted=sums, difference=sums_of([0.0, 0.0, 0.1, -0.1]))
    (task,) = load_tasks((home / "task.toml",)).values()
    figure = {"value": 0.8, "low": 0.7, "high": 0.9}
    report = {
        "task": "chat", "judge": "auditor", "at": "now", "labels_file": "l", "labels_sha256": "0",
        "identity": identity_of(task.judges[0]),
        "figures": FIGURES | {"sensitivity": figure, "specificity": figure, "num_good": 50, "num_bad": 50},
    }  # fmt: skip
    (home / "auditor.admission.json").write_text(json.dumps(report))
    accuracy = _accuracy(task)
    assert accuracy == Accuracy(0.8, 0.8, 50, 50)
    Console().print(table_of(task, {1: known}, accuracy))
    printed = capsys.readouterr().out
    assert f"{(0.6 + 0.8 - 1) / 0.6:.3f}" in printed
    # Another judge than the one that was measured.
    (home / "task.toml").write_text((TASK + AUDITED).replace("good?", "kind?"))
    (other,) = load_tasks((home / "task.toml",)).values()
    assert _accuracy(other) is None
