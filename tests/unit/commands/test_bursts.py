from __future__ import annotations

from pathlib import Path

import pytest

from commands.rewards.bursts import run_bursts
from contracts.errors import InvalidSettings
from rewards.signals.bursts import VotePace
from rewards.signals.repository import hold_paces, keep_paces
from runtime.database import Database
from tests.unit.commands.test_estimate import TASK, a_home

WATCHED = TASK + "[trust.burst]\nbucket_seconds = 600\n"


def with_burst(folder: Path, migrated: Path) -> Path:
    home = a_home(folder, migrated, WATCHED)
    database = Database(f"sqlite:///{home / 'millrace.db'}")
    names = {("chat", "other-3", "bad"), ("chat", "other-3", "good")}
    with database.transaction() as connection:
        paces = hold_paces(connection, names)
        quiet = VotePace(bucket=100, num=3)
        keep_paces(connection, paces | {("chat", "other-3", "good"): quiet})
        keep_paces(connection, {("chat", "other-3", "bad"): VotePace(bucket=100, num=900, quarantined_until=106)})
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
