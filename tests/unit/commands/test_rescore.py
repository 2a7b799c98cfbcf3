from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.rewards.rescore import parse_since, run_rescore
from contracts.errors import InvalidSettings, InvalidTask
from contracts.event_log import LogRecord, Message
from contracts.records import Episode, Generation, Signal, encode
from contracts.tables import score
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from contracts.topics import EPISODES
from rewards.replay import Replay, ReplayComparison
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.log.local import LocalLog
from tests.fakes import a_generation, a_signal

OLD = """name = "booking"
window_seconds = 10
[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
[[verifiers]]
name = "shape"
kind = "json_schema"
[verifiers.config.schema]
type = "object"
"""
STRICT = OLD.replace('type = "object"\n', 'type = "object"\nrequired = ["name"]\n')
RENAMED = OLD.replace('"shape"', '"form"')


@pytest.fixture
def home(tmp_path: Path, migrated: Path) -> Path:
    """A home with a task and an empty log."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "task.toml").write_text(OLD)
    lines = ["[millrace]", f'home = "{folder}"', 'run = "r"', 'policy = "booking"', 'base = "base"']
    (folder / "millrace.toml").write_text("\n".join([*lines, f'tasks = ["{folder / "task.toml"}"]']) + "\n")
    (folder / "millrace.db").write_bytes(migrated.read_bytes())
    return folder


@pytest.fixture
def opened(home: Path) -> Iterator[tuple[LocalLog, Database]]:
    log, database = LocalLog(home / "log"), Database(f"sqlite:///{home / 'millrace.db'}")
    yield log, database
    log.close()
    database.close()


def task_of(text: str, folder: Path) -> Task:
    file = folder / "new.toml"
    file.write_text(text)
    return load_tasks((file,))["booking"]


def lived(opened: tuple[LocalLog, Database], home: Path, *turns: tuple[Generation, Any], times: int = 1) -> None:
    """Episodes that the worker scored when they came; a value of None is a silent user."""
    log, database = opened
    handler = RewardsHandler({"booking": load_tasks((home / "task.toml",))["booking"]}, lambda: 200.0)
    for number, (turn, value) in enumerate(turns):
        signals: tuple[Signal, ...] = () if value is None else (a_signal(turn, value=value),)
        episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=signals, closed_at=111.0)
        log.append([Message(EPISODES, number, turn.key, encode(episode))] * times)
        record = LogRecord(EPISODES, 0, 0, turn.key, encode(episode), 0.0)
        with database.transaction() as connection:
            handler.handle(connection, handler.prepare([handler.read(record)]))


def replay(
    opened: tuple[LocalLog, Database], task: Task, since: float = 0.0, limit: int | None = None
) -> ReplayComparison:
    comparison = ReplayComparison()
    for item in Replay(*opened, task).run(since, limit):
        comparison.add(item)
    return comparison


def test_the_same_task_file_changes_nothing(opened: tuple[LocalLog, Database], home: Path) -> None:
    says = [(a_generation(), True), (a_generation(), False), (a_generation("x"), True), (a_generation(), None)]
    lived(opened, home, *says)
    found = replay(opened, task_of(OLD, home))
    assert (found.num, found.num_unchanged, found.num_changed, found.num_new) == (4, 4, 0, 0)
    assert found.before.value == found.after.value == pytest.approx(1 / 3)
    assert (found.before.num_null, found.after.num_null) == (1, 1)
    assert found.largest == []
    assert found.components["shape"].labels_before == found.components["shape"].labels_after


def test_other_graders_show_what_would_change(opened: tuple[LocalLog, Database], home: Path) -> None:
    named, plain = a_generation('{"name":"Lee"}'), a_generation("{}")
    lived(opened, home, (named, True), (plain, True), (a_generation("{}"), False), (a_generation("{}"), None))
    found = replay(opened, task_of(STRICT, home))
    assert (found.num_unchanged, found.num_changed) == (1, 3)
    assert found.before.value == pytest.approx(2 / 3)
    assert found.after.value == pytest.approx(1 / 4)
    assert (found.before.num_null, found.after.num_null) == (1, 0)
    assert found.statuses == {("unlabelled", "scored"): 1}
    shape = found.components["shape"]
    assert (shape.before.value, shape.after.value, shape.disagreements) == (1.0, 0.25, 3)
    assert shape.labels_before.keys().isdisjoint(shape.labels_after)
    assert found.largest[0].key == plain.key


def test_a_component_that_only_one_side_has_is_shown_and_does_not_disagree(
    opened: tuple[LocalLog, Database], home: Path
) -> None:
    lived(opened, home, (a_generation(), True))
    found = replay(opened, task_of(RENAMED, home))
    assert (found.components["shape"].after.num, found.components["form"].before.num) == (0, 0)
    assert found.components["form"].disagreements == found.components["shape"].disagreements == 0
    assert found.num_changed == 0


def test_nothing_is_written(opened: tuple[LocalLog, Database], home: Path) -> None:
    lived(opened, home, (a_generation("{}"), True))
    log, database = opened
    with database.snapshot() as connection:
        before = connection.execute(score.select()).all()
    replay(opened, task_of(STRICT, home))
    with database.snapshot() as connection:
        assert connection.execute(score.select()).all() == before
    assert sum(log.ends(EPISODES).values()) == 1


def test_what_was_delivered_twice_is_replayed_once(opened: tuple[LocalLog, Database], home: Path) -> None:
    lived(opened, home, (a_generation(), True), times=3)
    assert replay(opened, task_of(OLD, home)).num == 1


def test_what_was_not_scored_yet_is_counted_apart(opened: tuple[LocalLog, Database], home: Path) -> None:
    turn = a_generation()
    episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=(), closed_at=111.0)
    opened[0].append([Message(EPISODES, 0, turn.key, encode(episode))])
    found = replay(opened, task_of(OLD, home))
    assert (found.num, found.num_new, found.num_changed) == (1, 1, 0)


def test_damaged_records_and_other_tasks_are_left_out_and_said(opened: tuple[LocalLog, Database], home: Path) -> None:
    lived(opened, home, (a_generation(), True), (a_generation(task="other"), True))
    opened[0].append([Message(EPISODES, 0, "x", b"\x00damaged")])
    pass_ = Replay(*opened, task_of(OLD, home))
    assert len(list(pass_.run(0.0))) == 1
    assert (pass_.others, pass_.num_unreadable) == ({"other"}, 1)


class AgedLog(LocalLog):
    """Each record is a minute younger than the one before it in its partition; counts what is read."""

    num_read = 0

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        records = super().read(topic, partition, offset, limit)
        self.num_read += len(records)
        return [record._replace(appended_at=60.0 * record.offset) for record in records]


def test_only_what_is_young_enough_is_read_and_the_oldest_comes_first(database: Database, home: Path) -> None:
    log = AgedLog(home / "log")
    keys = []
    for number in range(400):
        turn = a_generation()
        keys.append(turn.key)
        episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=(), closed_at=111.0)
        log.append([Message(EPISODES, number, turn.key, encode(episode))])
    task = task_of(OLD, home)
    found = [item.key for item in Replay(log, database, task).run(60.0 * 90)]
    assert sorted(found) == sorted(keys[360:])
    assert log.num_read < 40 + 4 * 10
    assert {item.key for item in Replay(log, database, task).run(60.0 * 90, limit=8)} == {*keys[360:368]}
    log.close()


def test_the_command_prints_what_would_change(
    opened: tuple[LocalLog, Database], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = a_generation("{}")
    lived(opened, home, (plain, True), (a_generation('{"name":"Lee"}'), True))
    new, out = tmp_path / "strict.toml", tmp_path / "out.jsonl"
    new.write_text(STRICT)
    run_rescore(home=home, task="booking", since="1h", task_file=new, out=out)
    said = capsys.readouterr().out
    assert "2 episodes of booking" in said
    assert "1 unchanged, 1 changed, 0 not scored before" in said
    assert "Nothing was changed" in said
    assert f"{plain.key} r1: 1.000 -> 0.000 by shape" in said
    assert "shape: json_schema/" in said
    lines = {line["key"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert (lines[plain.key]["before"]["reward"], lines[plain.key]["after"]["reward"]) == (1.0, 0.0)
    assert [item["name"] for item in lines[plain.key]["after"]["scores"]] == ["shape", "accepted"]


def test_without_a_new_file_the_homes_own_is_replayed(
    opened: tuple[LocalLog, Database], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lived(opened, home, (a_generation(), True))
    found = run_rescore(home=home, task="booking", since="1h", task_file=None, out=None, limit=1)
    assert found.num_unchanged == 1
    assert "largest changes" not in capsys.readouterr().out


def test_a_replay_of_nothing_says_what_there_is(
    opened: tuple[LocalLog, Database], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lived(opened, home, (a_generation(task="other"), None))
    run_rescore(home=home, task="booking", since="1h", task_file=None, out=None, limit=None)
    assert "there are episodes of other" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "nosuch"}, "it has booking"),
        ({"since": "yesterday"}, "--since"),
        ({"out": Path("/nonexistent/x.jsonl")}, "--out"),
        ({"home": Path("/nonexistent")}, "nonexistent"),
    ],
)
def test_wrong_options_are_refused(home: Path, options: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"home": home, "task": "booking", "since": "1h"}
    with pytest.raises(InvalidSettings, match=says):
        run_rescore(**(given | options))


def test_a_new_task_file_with_a_mistake_is_refused_by_its_line(home: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.toml"
    new.write_text(OLD.replace("json_schema", "json_shema"))
    with pytest.raises(InvalidTask, match=r"new\.toml:8"):
        run_rescore(home=home, task="booking", since="1h", task_file=new, out=None, limit=None)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("90s", 999_910.0),
        ("30m", 998_200.0),
        ("2h", 992_800.0),
        ("1.5d", 870_400.0),
        ("1970-01-02", 86_400.0),
        ("1970-01-02T00:00Z", 86_400.0),
        ("1970-01-02T01:00:00+01:00", 86_400.0),
    ],
)
def test_since_is_an_age_or_a_time(text: str, start: float) -> None:
    assert parse_since(text, 1_000_000.0) == start


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2h30m", "1970-13-01", "2100-01-01"])
def test_since_is_nothing_else(text: str) -> None:
    with pytest.raises(InvalidSettings, match="--since"):
        parse_since(text, 1_000_000.0)
