"""`millrace dead-letters` on a home, and what the ledger says before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select
from typer.testing import CliRunner

from commands.audit import audit
from contracts.errors import Conflict, InvalidRequest, NotFound
from contracts.event_log import Message
from contracts.records import Episode, Generation, Signal, encode
from contracts.tables import dead_letter, generation, outbox, received_signal, score, signal
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from contracts.wire import packed
from millrace import app
from pipelines.episodes.handler import EpisodesHandler, ReadRecord
from rewards.worker import RewardsHandler
from runtime.days import migrate
from runtime.log.outbox import message, waiting
from runtime.log.redrive import find, parse_place, redrive, skip
from runtime.settings import Settings, write_settings
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, a_generation, a_signal, everything

TASKS = {"booking": BOOKING_TASK}


class Episodes(EpisodesHandler):
    """Cannot process what it was told not to, until that is mended."""

    broken: set[str]

    def handle(self, connection: Connection, items: Any) -> list[Message]:
        for item in items:
            name = getattr(item.record, "id", item.record.key) if isinstance(item, ReadRecord) else ""
            if name in self.broken:
                raise KeyError(f"a fault of ours about {item.record.key}")
        return super().handle(connection, items)


class Rewards(RewardsHandler):
    """The same."""

    broken: set[str]

    def handle(self, connection: Connection, items: Any) -> list[Message]:
        if any(item.episode.key in self.broken for item in items):
            raise KeyError("a fault of ours")
        return super().handle(connection, items)


class DeadLettersWorld:
    """A home with the two workers whose dead letters are looked at."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home, run="r", policy="booking", base="base", tasks=(Path("task.toml"),))
        write_settings(self.settings, {})
        self.home = home
        self.database, self.log = self.settings.database(), self.settings.event_log()
        migrate(self.database)
        self.episodes, self.rewards = Episodes(TASKS, lambda: 103.0), Rewards(TASKS, lambda: 104.0)
        self.episodes.broken, self.rewards.broken = set(), set()

    def hear(self, *records: Generation | Signal) -> None:
        topics = {Generation: GENERATIONS, Signal: SIGNALS}
        self.log.append([message(topics[type(record)], record.key, record) for record in records])
        with self.database.transaction() as connection:
            for record in records:
                if isinstance(record, Signal):
                    row = {"tenant": record.tenant, "id": record.id, "body_hash": "", "received_at": 102.0}
                    connection.execute(received_signal.insert().values(record=encode(record), **row))
        self.work()

    def work(self) -> None:
        episodes = Worker(self.episodes, self.database, self.log, clock=lambda: 103.0)
        rewards = Worker(self.rewards, self.database, self.log, clock=lambda: 104.0)
        for _ in range(3):
            episodes.step()
            rewards.step()

    def run(self, *words: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, ["dead-letters", *words, "--home", str(self.home)])
        assert done.exit_code == status, done.output
        return done.output

    def listed(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("list", "--json", *words).splitlines()]

    def state(self, of: Generation) -> tuple[str, str] | None:
        with self.database.snapshot() as connection:
            columns = (generation.c.state, generation.c.state_reason)
            mine = select(*columns).where(generation.c.completion_id == of.completion_id)
            row = connection.execute(mine).one_or_none()
        return None if row is None else (row.state, row.state_reason)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DeadLettersWorld]:
    made = DeadLettersWorld(tmp_path)
    yield made
    made.rewards.close()
    made.log.close()
    made.database.close()


def test_a_buried_generation_is_named_until_somebody_decides_and_then_counted(world: DeadLettersWorld) -> None:
    lost, kept = a_generation(), a_generation()
    world.episodes.broken = {lost.key}
    world.hear(lost, kept, a_signal(kept))
    [letter] = world.listed()
    assert (letter["process"], letter["key"], letter["state"]) == ("episodes", lost.key, "open")
    before = audit(world.database, world.log)
    assert before.problems == (
        "generations: 1 could not be processed by episodes (millrace dead-letters list --process episodes)",
    )
    assert before.generations.states["dead_letter"] == 1
    world.run("skip", "episodes", letter["place"])
    after = audit(world.database, world.log)
    assert after.balanced
    assert (after.generations.total, after.generations.states["dead_letter"]) == (2, 1)
    assert world.listed() == []
    assert [item["state"] for item in world.listed("--all")] == ["skipped"]


def test_what_is_redriven_is_done_once_however_often(world: DeadLettersWorld) -> None:
    lost = a_generation()
    said = a_signal(lost)
    world.episodes.broken = {lost.key}
    world.hear(lost, said)
    world.episodes.broken = set()
    [letter] = world.listed()
    world.run("redrive", "episodes", letter["place"])
    # A command that died between append and delete appends once more.
    [record] = [item for item in everything(world.log, GENERATIONS) if item.offset > 0]
    world.log.append([Message(GENERATIONS, record.partition, record.key, record.value)])
    world.work()
    assert len(everything(world.log, GENERATIONS)) == 3
    assert len(everything(world.log, EPISODES)) == len(everything(world.log, EXPERIENCES)) == 1
    with world.database.snapshot() as connection:
        assert len(connection.execute(select(score)).all()) == 1
        assert connection.execute(select(signal.c.state)).scalars().all() == ["joined"]
        assert connection.execute(select(outbox)).all() == []
    assert audit(world.database, world.log).balanced


def test_what_fails_again_is_a_dead_letter_at_its_new_place(world: DeadLettersWorld) -> None:
    lost = a_generation()
    world.episodes.broken = {lost.key}
    world.hear(lost)
    [first] = world.listed()
    world.run("redrive", "episodes", "--all")
    world.work()
    [second] = world.listed()
    assert parse_place(second["place"]).offset == parse_place(first["place"]).offset + 1
    assert "already redriven" in str(_raised(world, "redrive", "episodes", first["place"]))


@pytest.mark.parametrize("then", ["nothing", "redriven"])
def test_a_sample_whose_episode_was_skipped_is_unscored_by_name(world: DeadLettersWorld, then: str) -> None:
    about = a_generation()
    world.rewards.broken = {about.key}
    world.hear(about, a_signal(about))
    assert world.state(about) == ("pending", "")
    assert not audit(world.database, world.log).balanced
    [letter] = world.listed("--process", "rewards", "--topic", EPISODES)
    world.run("skip", "rewards", letter["place"])
    world.work()
    assert world.state(about) == ("unscored", "dead_letter")
    assert audit(world.database, world.log, settled=True).balanced
    if then == "redriven":  # somebody thought better of it: it is scored, and the trainer's word will beat the skip's
        world.rewards.broken = set()
        world.run("redrive", "rewards", letter["place"])
        world.work()
        assert len(everything(world.log, EXPERIENCES)) == 1


def test_a_buried_experience_leaves_its_sample_a_name_but_not_one_that_the_trainer_gave(
    world: DeadLettersWorld,
) -> None:
    about, trained = a_generation(), a_generation()
    world.hear(about, a_signal(about), trained, a_signal(trained))
    with world.database.transaction() as connection:
        connection.execute(
            generation.update().where(generation.c.completion_id == trained.completion_id).values(state="trained")
        )
        for number, record in enumerate(everything(world.log, EXPERIENCES)):
            row = {"consumer_group": "training", "topic": EXPERIENCES, "partition": 0, "offset": number, "at": 0.0}
            connection.execute(dead_letter.insert().values(reason="", value=record.value, key=record.key, **row))
    world.run("skip", "training", "--all")
    world.work()
    assert world.state(about) == ("unscored", "dead_letter")
    assert world.state(trained) == ("trained", "")


def test_what_only_the_train_could_not_read_leaves_its_sample_to_the_trainer(world: DeadLettersWorld) -> None:
    about = a_generation()
    world.hear(about, a_signal(about))
    [record] = everything(world.log, EXPERIENCES)
    with world.database.transaction() as connection:
        row = {"consumer_group": "release", "topic": EXPERIENCES, "partition": 0, "offset": 0, "at": 0.0}
        connection.execute(dead_letter.insert().values(reason="", value=record.value, key=record.key, **row))
    world.run("skip", "release", "--all")
    world.work()
    assert world.state(about) == ("pending", "")
    assert world.listed() == []


def test_a_buried_signal_is_pending_and_once_skipped_rejected_by_name_and_can_come_back(
    world: DeadLettersWorld,
) -> None:
    about = a_generation()
    said = a_signal(about)
    world.episodes.broken = {said.id}
    world.hear(about, said)
    result = audit(world.database, world.log)
    assert (result.signals.states["pending"], result.balanced) == (1, False)
    world.run("skip", "episodes", "--all", "--topic", SIGNALS)
    result = audit(world.database, world.log)
    assert (result.signals.states["rejected"], result.signals.states["pending"], result.balanced) == (1, 0, True)
    world.episodes.broken = set()
    world.run("redrive", "episodes", world.listed("--all")[0]["place"])
    world.work()
    result = audit(world.database, world.log)
    assert (result.signals.states["joined"], result.signals.states["rejected"], result.balanced) == (1, 0, True)


def test_a_dead_letter_from_before_they_kept_keys_is_named_too(world: DeadLettersWorld) -> None:
    lost = a_generation()
    world.episodes.broken = {lost.key}
    world.hear(lost)
    with world.database.transaction() as connection:
        connection.execute(dead_letter.update().values(key=None))
    assert audit(world.database, world.log).generations.states["dead_letter"] == 1


def test_show_tells_everything_that_can_be_read(world: DeadLettersWorld) -> None:
    lost = a_generation("an answer")
    world.episodes.broken = {lost.key}
    world.hear(lost)
    shown = world.run("show", "episodes", world.listed()[0]["place"])
    assert lost.completion_id in shown
    assert "an answer" in shown
    assert "Traceback" in shown
    assert f"a fault of ours about {lost.key}" in shown


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\xc1", '"record": "c1"'),
        (b"\x81\xa1a\xc4\x02\x00\x01", '"a": "0001"'),
        (packed(b"\x81\xa1a\xc4\x02\x00\x01"), '"a": "0001"'),
        (b"\x91" * 5000, "9191"),
    ],
)
def test_what_is_no_record_is_shown_as_what_it_is(world: DeadLettersWorld, value: bytes, said: str) -> None:
    world.log.append([Message(SIGNALS, 0, "k", value)])
    world.work()
    assert said in world.run("show", "episodes", "signals/0@0")
    world.run("skip", "episodes", "signals/0@0")
    assert audit(world.database, world.log).balanced


def test_what_would_not_decode_today_is_shown_with_its_fields(world: DeadLettersWorld) -> None:
    about = a_generation(created_at=1e300, body=b"no body")
    world.log.append([Message(GENERATIONS, 0, about.key, encode(about))])
    world.work()
    shown = world.run("show", "episodes", "generations/0@0")
    assert "1e+300" in shown
    assert "created_at: 1e+300 is not a time" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "episodes", "generations/0"), "TOPIC/PARTITION@OFFSET"),
        (("show", "episodes", "nothing/0@1"), "is not a record's position"),
        (("show", "episodes", "generations/0@7"), "has no dead letter generations/0@7"),
        (("redrive", "episodes"), "or say --all"),
        (("skip", "episodes", "generations/0@7", "--all"), "not both"),
        (("skip", "episodes", "--all"), "no open dead letters"),
        (("list", "--topic", "nothing"), "no topic 'nothing'"),
    ],
)
def test_a_mistake_is_named(world: DeadLettersWorld, words: tuple[str, ...], message: str) -> None:
    assert message in str(_raised(world, *words))


def test_an_empty_list_says_so(world: DeadLettersWorld) -> None:
    assert "no open dead letters" in world.run("list")


def test_what_the_log_never_took_can_only_be_skipped(world: DeadLettersWorld) -> None:
    about = a_generation()
    world.hear(about)
    episode = Episode(key=about.key, revision=1, reason="window", turns=(about,), signals=(), closed_at=1.0)
    with world.database.transaction() as connection:
        row = {"consumer_group": "episodes", "topic": EPISODES, "partition": 0, "offset": -5, "at": 0.0}
        connection.execute(dead_letter.insert().values(key=about.key, value=encode(episode), reason="large", **row))
        [letter] = find(connection)
        with pytest.raises(Conflict, match="skip it"):
            redrive(connection, [letter], 1.0)
        skip(connection, [letter], 1.0)
        with pytest.raises(Conflict, match="somebody else"):
            skip(connection, [letter], 1.0)
        assert [item.key for item in waiting(connection, OUTCOMES, "dead-letters")] == [about.key]


def _raised(world: DeadLettersWorld, *words: str) -> Exception:
    done = CliRunner().invoke(app, ["dead-letters", *words, "--home", str(world.home)])
    assert isinstance(done.exception, InvalidRequest | NotFound | Conflict), done.output
    return done.exception
