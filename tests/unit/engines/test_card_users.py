"""How many users wait: what inference writes is what a trainer reads; what is old, damaged or another home's counts nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from contracts.errors import InvalidSettings
from engines.card_users import FRESH_SECONDS, CardUsers, GpuSettings, WaitingUsers, budget_seconds
from runtime.settings import Settings, write_settings


def a_home(folder: Path, run: str = "one") -> Settings:
    return Settings(home=folder, run=run, policy="demo", base="base", tasks=(Path("task.toml"),))


def the_file(settings: Settings) -> Path:
    (file,) = (settings.home / "users").iterdir()
    return file


def test_users_are_counted_while_they_wait(tmp_path: Path) -> None:
    settings = a_home(tmp_path)
    waiting = WaitingUsers(settings)
    assert waiting.num() == 0
    users = CardUsers(settings)
    assert waiting.num() == 0
    with users.one_more(), users.one_more():
        assert waiting.num() == 2
    with pytest.raises(RuntimeError), users.one_more():
        raise RuntimeError
    assert waiting.num() == 0
    users.close()
    users.close()


def test_a_process_that_ended_without_a_word_keeps_nobody_waiting(tmp_path: Path) -> None:
    settings, now = a_home(tmp_path), 1000.0
    users = CardUsers(settings, lambda: now)
    with users.one_more():
        assert WaitingUsers(settings, lambda: now + FRESH_SECONDS).num() == 1
        assert WaitingUsers(settings, lambda: now + FRESH_SECONDS + 0.1).num() == 0
        now += FRESH_SECONDS
        users.renew()
        assert WaitingUsers(settings, lambda: now).num() == 1


@pytest.mark.parametrize("content", [b"", b"MRUSERS1", b"x" * 40, b"MRUSERS1" + bytes(32)])
def test_a_file_that_says_nothing_is_ignored_with_one_warning(tmp_path: Path, content: bytes) -> None:
    settings = a_home(tmp_path)
    users, waiting = CardUsers(settings), WaitingUsers(settings)
    (tmp_path / "users" / "odd").write_bytes(content)
    with users.one_more(), capture_logs() as lines:
        assert [waiting.num(), waiting.num()] == [1, 1]
    assert [line["log_level"] for line in lines] == ["warning"]


def test_users_of_another_home_do_not_count(tmp_path: Path) -> None:
    other = CardUsers(a_home(tmp_path, "other"))
    with other.one_more(), capture_logs() as lines:
        assert WaitingUsers(a_home(tmp_path)).num() == 0
    assert lines[0]["reason"] == "of another home"


def test_users_are_answered_where_no_file_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("in the way")
    with capture_logs() as lines:
        users = CardUsers(a_home(tmp_path))
    with users.one_more():
        users.renew()
    users.close()
    assert len(lines) == 1


def test_users_are_answered_where_the_disk_is_full(tmp_path: Path) -> None:
    settings = a_home(tmp_path)
    CardUsers(settings).close()
    file = the_file(settings)
    file.unlink()
    file.symlink_to("/dev/full")
    users = CardUsers(settings)
    with users.one_more(), capture_logs() as lines:
        assert WaitingUsers(settings).num() == 0
    users.close()
    assert [line["log_level"] for line in lines] == ["warning"]


@pytest.mark.parametrize(("given", "seconds"), [({}, None), ({"added_p99_ms": 50}, 0.05)])
def test_the_budget_is_the_homes(tmp_path: Path, given: dict[str, Any], seconds: float | None) -> None:
    settings = a_home(tmp_path)
    assert budget_seconds(settings) is None
    write_settings(settings, {"gpu": GpuSettings(**given)})
    assert budget_seconds(settings) == seconds


def test_a_budget_of_nothing_is_refused(tmp_path: Path) -> None:
    settings = a_home(tmp_path)
    write_settings(settings, {})
    with (tmp_path / "millrace.toml").open("a") as file:
        file.write("\n[gpu]\nadded_p99_ms = 0\n")
    with pytest.raises(InvalidSettings, match="added_p99_ms"):
        budget_seconds(settings)
