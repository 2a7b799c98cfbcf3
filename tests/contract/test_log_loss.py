"""A log that is lost while the database stays: noticed, named, accepted; nothing that the database holds is without a state."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from commands.audit import audit
from contracts.errors import InvalidSettings, LogLost, PositionLost
from contracts.event_log import EventLog, LogRecord, Message
from contracts.ids import new_completion_id
from contracts.records import Experience, Generation, Outcome, decode
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS, TOPICS
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.batch import Handler
from runtime.database import Database
from runtime.log.kafka.log import KafkaLog
from runtime.log.local import LocalLog
from runtime.log.loss_acceptance import AcceptedLoss, accept_loss
from runtime.log.loss_detection import losses, note, require_same_log
from runtime.log.outbox import Relay, message
from runtime.worker import Worker
from services.dashboard.live.identities import identities
from services.dashboard.live.queries import read_totals
from services.dashboard.live.traffic import CONSUMERS, TrafficReader
from services.feedback import repository as feedback
from services.feedback.requests import ReceivedItem
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.ledger_states import generation_states, signal_states
from tests.worlds.servers.services import kafka_log, kafka_servers, new_prefix

SIGNALS_ONLY = Task.model_validate(
    {
        "name": "chat",
        "window_seconds": 10,
        "signals": {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}},
    }
)
SUMS = Task.model_validate(
    {
        "name": "sums",
        "window_seconds": 10,
        "silence": 0.5,
        "signals": {"shown": {"type": "bool", "labels": {"true": 0.5}}},
        "verifiers": [{"name": "right", "kind": "numeric", "config": {}}],
    }
)
TASKS = {task.name: task for task in (BOOKING_TASK, SIGNALS_ONLY, SUMS)}
PATIENCE_SECONDS = 120.0
STAGES = ("logged", "joined", "emitted", "scored", "decided", "told")
"""How far the workers had come when the log was lost."""


class Learner(Handler[Experience]):
    """Stands for the trainer: decides every experience, and tells it again when a later revision comes."""

    name, topics, batch_size = "learner", (EXPERIENCES,), 500

    def read(self, record: LogRecord) -> Experience:
        return decode(Experience, record.value)

    def prepare(self, items: Sequence[Experience]) -> Sequence[Experience]:
        return items

    def handle(self, connection: Connection, items: Sequence[Experience]) -> list[Message]:
        del connection
        return [
            message(
                OUTCOMES,
                item.key,
                Outcome(
                    key=item.key, revision=item.revision, epoch=1, state="trained", version=1, writer="training", at=0.0
                ),
            )
            for item in items
            if item.status == "scored" and item.purpose == "user"
        ]


class LogLossWorld:
    """The workers of a home, on one log after the other."""

    def __init__(self, database: Database, open_log: Callable[[], EventLog], lose: Callable[[str], None]) -> None:
        self.database, self._open, self._lose = database, open_log, lose
        self.now = 100.0
        self.log = open_log()
        self.start()
        self.sent: list[str] = []
        self.said: list[str] = []

    def answers(self, number: int, **changes: Any) -> list[Generation]:
        tasks = itertools.cycle(TASKS)
        defaults: dict[str, Any] = {"finished_at": self.now, "metadata": {"reference": "2"}}
        made = [
            a_generation(**(defaults | {"completion_id": new_completion_id(), "task": next(tasks)} | changes))
            for _ in range(number)
        ]
        self.log.append([message(GENERATIONS, item.key, item) for item in made])
        self.sent += [item.key for item in made]
        return made

    def signals(self, about: Sequence[Generation]) -> None:
        for item in about:
            record = a_signal(item, "accepted", True, received_at=self.now)
            with self.database.transaction() as connection:
                feedback.add(connection, [ReceivedItem(record, "hash-" + record.id, None)])
            self.said.append(record.id)

    def relay(self) -> None:
        Relay("feedback", self.database, self.log).flush()

    def work(self, *names: str) -> None:
        handlers: dict[str, Any] = {
            "episodes": EpisodesHandler(TASKS, lambda: self.now),
            "rewards": RewardsHandler(TASKS, database=self.database, clock=lambda: self.now),
            "learner": Learner(),
        }
        for name in names:
            worker: Worker[Any] = Worker(handlers[name], self.database, self.log, clock=lambda: self.now)
            if not isinstance(self.log, LocalLog):
                self._read_all(worker, handlers[name].topics)
            for _ in range(4):
                worker.step()
            worker._consumer.close()

    def _read_all(self, worker: Worker[Any], topics: Sequence[str]) -> None:
        """Kafka assigns the partitions later, and then its records come when they come."""
        ends = {(topic, place): end for topic in topics for place, end in self.log.ends(topic).items()}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while worker._positions != ends:
            assert time.monotonic() < deadline, (worker._positions, ends)
            worker.step(0.1)

    def settle(self) -> None:
        self.relay()
        for _ in range(3):
            self.work("episodes", "rewards", "learner", "episodes")
            self.now += 20.0

    def lose(self, topics: Sequence[str]) -> None:
        self.log.close()
        for topic in topics:
            self._lose(topic)
        self.log = self._open()

    def accept(self) -> AcceptedLoss:
        lost, found = losses(self.database, self.log), self.log.describe()
        with self.database.transaction() as connection:
            accepted = accept_loss(connection, lost, found, TASKS, self.now)
        self.start()
        return accepted

    def start(self) -> None:
        """As `prepare_home` does."""
        require_same_log(self.database, self.log, "HOME")
        self.log.create_topics()
        note(self.database, self.log.describe(), self.now)

    def states(self) -> dict[str, str]:
        with self.database.snapshot() as connection:
            return {key: state for key, (_, state) in generation_states(connection).items()}

    def signal_states(self) -> dict[str, str]:
        with self.database.snapshot() as connection:
            return signal_states(connection)


def on_files(database: Database, folder: Path) -> LogLossWorld:
    def lose(topic: str) -> None:
        for path in folder.glob(f"{topic}.db*"):
            path.unlink()

    return LogLossWorld(database, lambda: LocalLog(folder), lose)


@pytest.fixture
def world(any_database: Database, tmp_path: Path) -> Iterator[LogLossWorld]:
    world = on_files(any_database, tmp_path / "log")
    yield world
    world.log.close()


@pytest.fixture
def on_sqlite(database: Database, tmp_path: Path) -> Iterator[LogLossWorld]:
    """For the many cases that do not depend on which database it is."""
    world = on_files(database, tmp_path / "log")
    yield world
    world.log.close()


def with_everything(world: LogLossWorld) -> None:
    """26 answers of three tasks, some of them cancelled or excluded from training, and signals about most."""
    users = world.answers(20)
    world.answers(2, finish_reason="cancelled")
    world.answers(2, purpose="sentinel")
    world.answers(2, task="gone")
    world.signals([item for item in users if item.task != "sums"][:10])


def test_a_log_that_was_deleted_is_refused_instead_of_skipping_what_comes(world: LogLossWorld) -> None:
    with_everything(world)
    world.settle()
    world.lose(TOPICS)
    with pytest.raises(LogLost, match=r"accept-loss --home HOME") as refused:
        require_same_log(world.database, world.log, "HOME")
    assert "generations is missing: 26 records are gone" in refused.value.message
    world.log.create_topics()
    world.answers(1)  # the file is there again, and another one
    with pytest.raises(LogLost, match="is another"):
        require_same_log(world.database, world.log, "HOME")


def test_another_number_of_partitions_is_refused_once_there_are_records(world: LogLossWorld, tmp_path: Path) -> None:
    more = LocalLog(tmp_path / "more", 2 * world.log.num_partitions)
    more.create_topics()
    with closing(more):
        require_same_log(world.database, more, "HOME")  # nothing was written yet: any number will do
        world.answers(3)
        note(world.database, world.log.describe(), world.now)
        with pytest.raises(InvalidSettings, match=r"partitions is 8.*were written to 4.*Set partitions = 4"):
            require_same_log(world.database, more, "HOME")
    require_same_log(world.database, world.log, "HOME")


@pytest.mark.slow
def test_after_a_loss_was_accepted_every_new_answer_is_joined(world: LogLossWorld) -> None:
    with_everything(world)
    world.settle()
    assert set(world.states()) == set(world.sent)
    world.lose(TOPICS)
    assert world.accept().num_generations == 0
    before, world.sent = world.sent, []
    world.answers(26)
    world.settle()
    states = world.states()
    assert set(states) == {*before, *world.sent}
    assert "pending" not in states.values()
    assert audit(world.database, world.log, settled=True).problems == ()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("topics", [TOPICS, *((topic,) for topic in TOPICS)], ids="+".join)
@pytest.mark.slow
def test_whatever_is_lost_whenever_everything_the_database_holds_gets_a_state(
    on_sqlite: LogLossWorld, stage: str, topics: tuple[str, ...]
) -> None:
    world = on_sqlite
    with_everything(world)
    if stage != "logged":
        world.work("episodes")  # joined; nothing is decided by a signal yet
    if stage not in {"logged", "joined"}:
        world.relay()
        world.now += 20.0
        world.work("episodes")
    if stage in {"scored", "decided", "told"}:
        world.work("rewards")
    if stage in {"decided", "told"}:
        world.work("learner")
    if stage == "told":
        world.work("episodes")
    require_same_log(world.database, world.log, "HOME")
    joined = set(world.states())
    world.lose(topics)
    accepted = world.accept()
    unread = len(world.sent) - len(joined) if GENERATIONS in topics else 0
    assert accepted.num_generations == unread
    world.answers(5)
    world.settle()
    states = world.states()
    assert len(states) == len(world.sent) - unread
    assert "pending" not in states.values()
    heard = world.signal_states()
    settled = {id_ for id_, state in heard.items() if state != "pending"}
    assert set(heard) == set(world.said)
    if not unread:
        assert settled == set(world.said)
    result = audit(world.database, world.log)
    assert result.problems == ()
    assert result.generations.states.get("log_lost", 0) == unread
    assert dashboard_problems(world) == []


def dashboard_problems(world: LogLossWorld) -> list[str]:
    with world.database.snapshot() as connection:
        totals = read_totals(connection)
    lookout = TrafficReader(world.log)
    positions = totals.positions
    traffic = {topic: lookout.read(topic, positions, world.now) for topic in CONSUMERS}
    both = identities(totals, traffic)
    return [*both.generations.problems, *both.signals.problems]


@pytest.mark.slow
def test_an_older_copy_of_a_topic_is_shorter(world: LogLossWorld, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    world.answers(8)
    world.log.close()
    copies = {path: path.read_bytes() for path in folder.glob("generations.db*")}
    world.log = LocalLog(folder)
    world.answers(12)
    world.settle()
    require_same_log(world.database, world.log, "HOME")
    world.log.close()
    for path in folder.glob("generations.db*"):
        path.unlink()
    for path, content in copies.items():
        path.write_bytes(content)
    world.log = LocalLog(folder)
    with pytest.raises(LogLost, match=r"generations is shorter: \d+ records are gone"):
        require_same_log(world.database, world.log, "HOME")
    assert world.accept().num_generations == 0
    world.answers(6)
    world.settle()
    assert set(world.states()) == set(world.sent)
    assert audit(world.database, world.log).problems == ()


@pytest.mark.slow
def test_records_that_expired_unread_are_named(any_database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    world = LogLossWorld(any_database, lambda: LocalLog(folder), lambda _topic: None)
    world.work("episodes")
    world.answers(200)  # each partition gets more than the three that it loses
    connection = world.log._connection(GENERATIONS)  # type: ignore[attr-defined]
    connection.execute("DELETE FROM record WHERE offset < 3")
    with pytest.raises(
        PositionLost, match=r"generations is expired: 12 records are gone, 12 not read by episodes \(0: 0 to 3, "
    ):
        require_same_log(any_database, world.log, "HOME")
    assert world.accept().num_generations == 12
    world.settle()
    assert len(world.states()) == 188
    assert audit(any_database, world.log).generations.states["log_lost"] == 12
    world.log.close()


@pytest.mark.services
def test_a_kafka_topic_that_was_deleted_or_made_again(server: Database) -> None:
    """What follows for the database is the same as for a log in files, which both databases show above."""
    prefix = new_prefix()
    with kafka_log(prefix) as log:
        world = LogLossWorld(server, lambda: log, lambda _topic: None)
        with_everything(world)
        world.settle()
        require_same_log(server, log, "HOME")
        admin = log._cluster.admin()
        admin.delete_topics([prefix + topic for topic in (GENERATIONS, SIGNALS, EPISODES, EXPERIENCES)])
        with pytest.raises(LogLost, match="is missing"):
            require_same_log(server, log, "HOME")
        log.create_topics()
        with pytest.raises(LogLost, match="is another"):
            require_same_log(server, log, "HOME")
        admin.close()
        world.accept()
        before, world.sent = world.sent, []
        world.answers(26)
        world.settle()
        assert set(world.states()) == {*before, *world.sent}
        assert "pending" not in world.states().values()
        assert audit(server, log, settled=True).problems == ()


@pytest.mark.services
def test_kafka_topics_and_settings_that_both_got_more_partitions(server: Database) -> None:
    prefix = new_prefix()
    with kafka_log(prefix) as log:
        world = LogLossWorld(server, lambda: log, lambda _topic: None)
        world.answers(3)
        require_same_log(server, log, "HOME")
        admin = log._cluster.admin()
        admin.create_partitions({prefix + topic: 2 * log.num_partitions for topic in TOPICS})
        admin.close()
        more = KafkaLog(kafka_servers(), prefix=prefix, num_partitions=2 * log.num_partitions)
        with closing(more):
            more.check_topics()  # these two agree
            with pytest.raises(InvalidSettings, match=r"were written to 4"):
                require_same_log(server, more, "HOME")
