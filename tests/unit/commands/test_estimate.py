from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from commands.rewards.bursts import run_bursts
from commands.rewards.estimate import _accuracy, as_rows, run_estimate, table_of
from contracts.errors import InvalidSettings
from contracts.tasks.loading import load_tasks
from rewards.judges.report import identity_of
from rewards.signals.audit import Accuracy, VersionAudit
from rewards.signals.bursts import VotePace
from rewards.signals.estimates import mean_of
from rewards.signals.repository import hold_paces, keep_paces
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weighing
from rewards.sums import Sums
from runtime.database import Database
from tests.unit.rewards.judges.figures import FIGURES
from tests.unit.rewards.signals.crowds import NOW, a_task, an_item, sums_of, weigh

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


def noted(home: Path, items: list[ScoredSample], **changes: Any) -> None:
    """Let the reward worker's weighing note these."""
    task = a_task(**({"audit": {"judge": "auditor"}, "judges": [JUDGE]} | changes))
    database = Database(f"sqlite:///{home / 'millrace.db'}")
    weigh(database, Weighing({"chat": task}, lambda: NOW), items)
    database.close()


def crowd(num: int, version: int, *, agree: bool) -> list[ScoredSample]:
    """Nine of ten who speak are content; the silent, half of all, are not. Every fourth answer is audited."""
    items = []
    for number in range(num):
        spoke, good = number % 2 == 0, number % 20 != 0
        truth = float(good) if spoke else 0.0
        audited = (truth if agree else float(number % 8 == 0)) if number % 4 == 0 or number % 8 == 1 else None
        who, reward = (f"u{number}", truth) if spoke else (None, None)
        items.append(an_item(1000 * version + number, who, reward, version=version, audited=audited))
    return items


def test_each_version_is_shown_where_people_spoke_and_for_all(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    noted(home, crowd(200, 3, agree=True))
    known = run_estimate("chat", home)[3]
    assert (known.num, known.said.num, known.rewarded.num, known.silent.num) == (200, 100, 100, 100)
    assert (known.audited.num, known.audited_silent.num) == (50, 25)
    assert mean_of(known.said).value == pytest.approx(0.9)
    assert known.corrected().value == pytest.approx(0.45)
    printed = capsys.readouterr().out
    assert "mean reward of answers of chat, from 0 to 1" in printed
    assert "judge 'auditor' stands in where there is no reward" in " ".join(printed.split())
    assert "mean reward by 100 people, each counted once, over all versions: 0.900" in printed


def test_json_says_the_same_in_rewards(tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    noted(home, crowd(200, 3, agree=True))
    run_estimate("chat", home, as_json=True)
    found = json.loads(capsys.readouterr().out)
    (row,) = found.pop("versions")
    assert found == {
        "task": "chat", "unit": "reward of task 'chat', first revision of each answer", "range": [0.0, 1.0],
        "confidence": 0.95, "audit": "auditor", "corrected_for_errors_of_the_judge": False, "refused": None,
        "people": {"num": 100, "mean_of_what_each_said": pytest.approx(0.9)},
    }  # fmt: skip
    assert {name: row[name] for name in row if name.startswith("num") or name == "version"} == {
        "version": 3, "num_answers": 200, "num_rewarded": 100, "num_spoke": 100, "num_audited": 75,
    }  # fmt: skip
    assert row["of_all"]["value"] == pytest.approx(0.45)
    assert row["where_somebody_spoke"]["low"] < 0.9 < row["where_somebody_spoke"]["high"]


def test_an_audit_of_something_else_is_refused_and_the_rest_is_shown(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    noted(home, crowd(400, 3, agree=False))
    says = r"not estimated: on the 100 answers that have both, the audit lies .* from the reward .*task.toml:\d+\)"
    with pytest.raises(InvalidSettings, match=says):
        run_estimate("chat", home)
    printed = capsys.readouterr().out
    assert "0.900" in printed
    assert "of all" not in printed.replace("of all:", "")
    with pytest.raises(InvalidSettings, match=says):
        run_estimate("chat", home, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["refused"].startswith("on the 100 answers")
    assert found["versions"][0]["of_all"] is None


@pytest.mark.slow
def test_what_was_shown_for_a_criterion_of_its_own_is_refused(tmp_path: Path, migrated: Path) -> None:
    """Rewards from -1 to 1, true mean .591; the judge asks for something else, which 35% have: shown was -.298."""
    home = a_home(tmp_path, migrated, "reward = { low = -1.0, high = 1.0 }\n" + TASK + AUDITED)
    dice, items = np.random.default_rng(6), []
    for number in range(4_000):
        reward = 1.0 if dice.random() < 0.7955 else -1.0
        spoke = dice.random() < (0.5 if reward > 0 else 0.2)
        audited = float(dice.random() < 0.35) if dice.random() < 0.1 else None
        items.append(
            an_item(number, f"u{number}" if spoke else None, reward if spoke else None, version=1, audited=audited)
        )
    noted(home, items, reward={"low": -1.0, "high": 1.0})
    with pytest.raises(InvalidSettings, match="the mean over all answers is not estimated"):
        run_estimate("chat", home)


def test_too_few_to_compare_is_refused_and_nothing_at_all_is_no_mistake(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    assert run_estimate("chat", home) == {}
    noted(home, crowd(40, 3, agree=True))
    with pytest.raises(InvalidSettings, match="only 10 answers have both"):
        run_estimate("chat", home)
    assert "0.900" in capsys.readouterr().out


def shown(known: VersionAudit, **changes: Any) -> list[str]:
    """The cells of a version's row."""
    task = a_task(audit={"judge": "auditor"}, judges=[JUDGE], **changes)
    table = table_of(task, as_rows(task, {7: known}, None, ""))
    return [str(next(iter(column.cells))) for column in table.columns]


def test_rewards_are_shown_in_the_range_of_the_task() -> None:
    said = sums_of([1.0] * 50 + [0.5] * 50)
    known = VersionAudit(said=said, rewarded=said, silent=Sums(100), audited_silent=sums_of([0.25]))
    row = shown(known, reward={"low": -1.0, "high": 1.0})
    interval = "0.500  (0.400 to 0.600)"  # half a unit either side of 0.5, and t of 99 degrees is 1.984
    assert row == ["7", "200", "100", "100", "1", interval, interval, "too few"]


@pytest.mark.parametrize(
    ("audits", "words"),
    [
        ([0.8, 0.8, 0.8], "too few"),  # all alike: their spread is not known
        ([0.8], "too few"),
        ([], "too few"),
        ([0.0, 1.0], "0.500  (0.000 to 1.000)"),
    ],
)
def test_no_estimate_lies_outside_the_range_of_rewards(audits: list[float], words: str) -> None:
    assert shown(VersionAudit(silent=Sums(200), audited_silent=sums_of(audits)))[-1] == words


@pytest.mark.parametrize(
    ("name", "task", "says"),
    [("chat", TASK, r"add \[audit\] to .*task.toml:1"), ("talk", TASK, r"no task 'talk' in .*; there are \['chat'\]")],
)
def test_what_cannot_be_estimated_is_said(tmp_path: Path, migrated: Path, name: str, task: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        run_estimate(name, a_home(tmp_path, migrated, task))


def test_what_the_judge_itself_gets_wrong_is_corrected_where_it_was_measured(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = a_home(tmp_path, migrated, TASK + AUDITED)
    audits = sums_of([0.0] * 40 + [1.0] * 60)
    known = VersionAudit(silent=Sums(1000), audited_silent=audits)
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
    Console().print(table_of(task, as_rows(task, {1: known}, accuracy, "")))
    printed = capsys.readouterr().out
    assert f"{(0.6 + 0.8 - 1) / 0.6:.3f}" in printed
    assert "its errors corrected" in printed
    # Another judge than the one that was measured.
    (home / "task.toml").write_text((TASK + AUDITED).replace("good?", "kind?"))
    (other,) = load_tasks((home / "task.toml",)).values()
    assert _accuracy(other) is None


def with_burst(folder: Path, migrated: Path) -> Path:
    home = a_home(folder, migrated, TASK + "[trust.burst]\nbucket_seconds = 600\n")
    database = Database(f"sqlite:///{home / 'millrace.db'}")
    bad, good = ("chat", "other-3", "bad"), ("chat", "other-3", "good")
    fast, quiet = VotePace(bucket=100, num=900, quarantined_until=106), VotePace(bucket=100, num=3)
    with database.transaction() as connection:
        keep_paces(connection, hold_paces(connection, {bad, good}) | {good: quiet, bad: fast})
    database.close()
    return home


def test_a_burst_is_listed_until_somebody_clears_it(
    tmp_path: Path, migrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = with_burst(tmp_path, migrated)
    run_bursts("chat", home)
    listed = capsys.readouterr().out
    assert "other-3/bad" in listed
    assert "900" in listed
    assert "1970-01-01 17:50 UTC" in listed
    assert "other-3/good" not in listed
    run_bursts("chat", home, "other-3/bad")
    run_bursts("chat", home)
    assert capsys.readouterr().out == ("votes of other-3/bad count again\nno burst in task 'chat': every vote counts\n")


def test_what_is_not_there_is_named_with_what_to_do(tmp_path: Path, migrated: Path) -> None:
    home = with_burst(tmp_path, migrated)
    with pytest.raises(InvalidSettings, match="lists them"):
        run_bursts("chat", home, "nosuch/bad")
    with pytest.raises(InvalidSettings, match="there are"):
        run_bursts("nosuch", home)


def test_a_task_that_looks_for_none_says_how_to(tmp_path: Path, migrated: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"add \[trust.burst\] to .*task.toml:1"):
        run_bursts("chat", a_home(tmp_path, migrated, TASK))
