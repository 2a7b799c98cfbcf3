"""`millrace backup` and `millrace restore` of an embedded home."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from commands.backup import backup
from commands.process import check_release
from commands.restore import restore
from contracts.errors import Conflict, Damaged, InvalidSettings, Unavailable
from contracts.event_log import TopicState
from pipelines.release.settings import ReleaseSettings
from runtime import schema
from runtime.log.local import LocalLog
from runtime.settings import Settings, load_section, load_settings, write_settings


def every_row(home: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all SQLite files of a home, by file and table."""
    found = {}
    for path in sorted(home.rglob("*.db")):
        connection = sqlite3.connect(path)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608 names of our own tables
            found[f"{path.relative_to(home)} {name}"] = rows
        connection.close()
    return found


def set_revision(home: Path, revision: str) -> None:
    connection = sqlite3.connect(home / "millrace.db")
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()


def test_a_home_comes_back_elsewhere_with_every_row(seeded_home: Path, tmp_path: Path) -> None:
    sentinels = seeded_home / "sentinels.jsonl"
    sentinels.write_text("\n")
    with (seeded_home / "millrace.toml").open("a") as file:
        file.write(f'\n[release]\nsentinels = "{sentinels}"\n')
    backup(tmp_path / "b", seeded_home)
    before = every_row(seeded_home)
    to = tmp_path / "elsewhere" / "home"
    restore(tmp_path / "b", to)
    assert every_row(to) == before
    assert load_settings(to).home == to
    assert load_section(to, "release", ReleaseSettings).sentinels == to / "sentinels.jsonl"
    assert [path.name for path in to.parent.iterdir()] == ["home"]
    assert not list(tmp_path.glob(".*"))


def test_a_home_that_is_not_empty_is_refused(seeded_home: Path, tmp_path: Path) -> None:
    backup(tmp_path / "b", seeded_home)
    to = tmp_path / "to"
    to.mkdir()
    (to / "note").write_text("mine")
    with pytest.raises(Conflict, match=r"to is not empty: it holds 'note' and 0 more\. Nothing was changed"):
        restore(tmp_path / "b", to)
    assert [path.name for path in to.iterdir()] == ["note"]
    (to / "note").unlink()
    (to / "lost+found").mkdir()  # a disk of its own
    restore(tmp_path / "b", to)
    assert load_settings(to).home == to


def test_a_damaged_backup_leaves_nothing(seeded_home: Path, tmp_path: Path) -> None:
    path = tmp_path / "b"
    backup(path, seeded_home)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(Damaged, match=r"is damaged: .* is not as it was written"):
        restore(path, tmp_path / "to")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["b", "home"]


@pytest.mark.parametrize(
    ("revision", "says"),
    [
        ("c2e3193157b5", "the older schema c2e3193157b5, and this process needs schema"),
        ("ffffffffffff", "has schema ffffffffffff, which a newer release made.*beside it is refused"),
    ],
)
def test_an_image_of_another_release_is_refused_beside_this_one(
    seeded_home: Path, tmp_path: Path, revision: str, says: str
) -> None:
    check_release(seeded_home)
    set_revision(seeded_home, revision)
    with pytest.raises(InvalidSettings, match=says):
        check_release(seeded_home)
    with pytest.raises(InvalidSettings, match=says):
        backup(tmp_path / "b", seeded_home)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.slow
def test_such_a_process_ends_with_the_status_that_no_supervisor_repeats(seeded_home: Path) -> None:
    set_revision(seeded_home, "ffffffffffff")
    command = [sys.executable, "-m", "millrace", "feedback", "--home", str(seeded_home)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 our own interpreter
    assert (ran.returncode, "which a newer release made" in ran.stdout) == (2, True), ran.stdout + ran.stderr


def test_a_backup_in_the_home_or_of_a_copied_home_is_refused(seeded_home: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="is inside the home"):
        backup(seeded_home / "b", seeded_home)
    copied = seeded_home.rename(tmp_path / "copied")
    with pytest.raises(InvalidSettings, match=r"copied/millrace.toml is that of .*/home: back up that home"):
        backup(tmp_path / "b", copied)


def test_a_server_for_what_is_in_the_home_is_refused(seeded_home: Path, tmp_path: Path) -> None:
    backup(tmp_path / "b", seeded_home)
    with pytest.raises(InvalidSettings, match="--database does not fit: what it names is in the home of this backup"):
        restore(tmp_path / "b", tmp_path / "to", "postgresql+psycopg://x@y/z")
    assert not (tmp_path / "to").exists()


def test_a_backup_is_taken_while_kafka_is_away_and_says_that_its_records_are_not_in_it(
    seeded_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class AwayLog(LocalLog):
        def describe(self) -> dict[str, TopicState]:
            raise Unavailable("no broker answers")

    monkeypatch.setattr(Settings, "event_log", lambda _: AwayLog(tmp_path / "away"))
    settings = load_settings(seeded_home).model_copy(update={"kafka": "127.0.0.1:9"})
    write_settings(settings, {})
    backup(tmp_path / "b", seeded_home)
    restore(tmp_path / "b", tmp_path / "to", kafka="127.0.0.1:19")
    said = capsys.readouterr().out
    assert "the log's ends are not noted: no broker answers" in said
    assert "not in it: Kafka's records" in said
    assert f"`millrace log accept-loss --home {tmp_path / 'to'}` shows what is lost with it" in said
    assert load_settings(tmp_path / "to").kafka == "127.0.0.1:19"


def test_the_newest_revision_is_the_one_of_a_new_database(seeded_home: Path) -> None:
    with sqlite3.connect(seeded_home / "millrace.db") as connection:
        [(found,)] = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    assert schema.newest() == found
