"""Losses that are planted in a ledger that balances: `audit` finds each one and names it. Retention, late and repeated records are not losses."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Executable, Update, delete, insert, select, update

from commands.audit import Audit, audit, print_day, sealed_day
from commands.ledger.sealing import NewSeals, write_seals
from contracts.errors import Conflict
from contracts.event_log import NUM_PARTITIONS, Message
from contracts.ids import first_id_at
from contracts.records import Generation, Outcome
from contracts.tables import (
    dead_letter,
    generation,
    generation_count,
    ledger_mark,
    ledger_seal,
    outbox,
    outcome,
    position,
    received_signal,
    signal,
    waiting_signal,
)
from contracts.tables.statements import add_to_count
from contracts.topics import GENERATIONS, OUTCOMES
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from runtime.days import drop_days, first_id, make_days
from runtime.log.local import LocalLog
from runtime.log.outbox import Relay, message
from runtime.log.redrive import find, redrive, skip
from runtime.seals import KeySum, add_dropped, read_seals, states_of_rows, sums_of_rows
from runtime.worker import Worker
from services.feedback import repository as feedback
from services.feedback.requests import ReceivedItem
from tests.fakes import BOOKING_TASK, a_generation, a_signal

TODAY = datetime.now(UTC).date()
OLD, OLDER = TODAY - timedelta(days=40), TODAY - timedelta(days=41)
EACH = 12


class Ledger:
    """Two old days and today, with answers in every partition; half of them have a signal, all of the old ones are trained."""

    def __init__(self, database: Database, folder: Path, num_partitions: int = NUM_PARTITIONS) -> None:
        self.database, self.log = database, LocalLog(folder, num_partitions)
        self._numbers, self._steps = itertools.count(), itertools.count(1)
        if not database.url.startswith("sqlite"):
            make_days(database, datetime(OLDER.year, OLDER.month, OLDER.day, tzinfo=UTC).timestamp(), ahead=1)
        self.answers = {day: self.add(day, EACH) for day in (OLDER, OLD, TODAY)}
        self.said = [self.say(item) for items in self.answers.values() for item in items[::2]]
        self.dead = self.add_bad()
        self.work()
        with database.transaction() as connection:
            skip(connection, find(connection), time.time())
        self.train([item for items in self.answers.values() for item in items])
        self.log.append([message(GENERATIONS, item.key, item) for item in self.answers[OLD][:2]])  # logged twice
        self.work()

    def add(self, day: date, number: int) -> list[Generation]:
        start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
        made = []
        for _ in range(number):
            serial = next(self._numbers)
            completion_id = f"{first_id_at(start + serial)}-7{serial:03x}-8abc-{serial:012x}"
            made.append(a_generation(completion_id=completion_id))
        self.log.append([message(GENERATIONS, item.key, item) for item in made])
        return made

    def add_bad(self) -> str:
        """A record that cannot be decoded; returns its key."""
        [fine] = [a_generation(completion_id=f"{first_id(TODAY)}-7001-8abc-{next(self._numbers):012x}")]
        self.log.append([Message(GENERATIONS, 1, fine.key, b"\x91")])
        return fine.key

    def say(self, about: Generation) -> str:
        record = a_signal(about, received_at=time.time())
        with self.database.transaction() as connection:
            feedback.add(connection, [ReceivedItem(record, "hash-" + record.id, None)])
        return record.id

    def train(self, answers: list[Generation]) -> None:
        told = Outcome(key="", revision=1, epoch=1, state="trained", version=1, writer="training", at=1.0, sequence=0)
        fates = [replace(told, key=item.key, sequence=next(self._steps)) for item in answers]
        self.log.append([message(OUTCOMES, fate.key, fate) for fate in fates])

    def work(self) -> None:
        Relay("feedback", self.database, self.log).flush()
        worker = Worker(EpisodesHandler({"booking": BOOKING_TASK}), self.database, self.log)
        while worker.step():
            pass
        Relay("dead-letters", self.database, self.log).flush()

    def drop(self, day: date) -> None:
        """As `millrace database drop-days`; SQLite has no days, so there the same is done by hand."""
        if not self.database.url.startswith("sqlite"):
            assert [item.day for item in drop_days(self.database, day + timedelta(days=1))] == [day]
            return
        which = generation.c.completion_id.between(first_id(day), first_id(day + timedelta(days=1)))
        with self.database.transaction() as connection:
            sums = sums_of_rows(connection, which)
            add_dropped(connection, day.isoformat(), sums, states_of_rows(connection, which), time.time())
            add_to_count(connection, generation_count, "dropped", sum(item.num for item in sums.values()))
            self.delete_day(connection, day)

    def delete_day(self, connection: Connection, day: date) -> None:
        for table, column in ((generation, generation.c.completion_id), (outcome, outcome.c.key)):
            connection.execute(delete(table).where(column.between(first_id(day), first_id(day + timedelta(days=1)))))
        mine = signal.c.completion_id.between(first_id(day), first_id(day + timedelta(days=1)))
        gone = list(connection.execute(select(signal.c.id).where(mine)).scalars())
        connection.execute(delete(signal).where(signal.c.id.in_(gone)))
        connection.execute(delete(received_signal).where(received_signal.c.id.in_(gone)))

    def expire(self, day: date) -> None:
        """The log no longer has what came up to the end of a day."""
        last = first_id(day + timedelta(days=1))
        files = self.log._connection(GENERATIONS)
        for partition in range(self.log.num_partitions):
            [bound] = files.execute(
                "SELECT COALESCE(MIN(offset), 0) FROM record WHERE partition = ? AND key >= ?", (partition, last)
            ).fetchone()
            files.execute("DELETE FROM record WHERE partition = ? AND offset < ?", (partition, bound))

    def audit(self, *, deep: bool = False, seal: bool = False) -> Audit:
        return audit(self.database, self.log, deep=deep, seal=seal)

    def change(self, *statements: Executable) -> None:
        with self.database.transaction() as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.fixture
def ledger(any_database: Database, tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(any_database, tmp_path / "log")
    before = made.audit()
    assert before.problems == ()
    assert before.generations.total == 3 * EACH + 1
    assert before.generations.states["trained"] == 3 * EACH
    assert (before.signals.total, before.signals.states["pending"]) == (3 * EACH // 2, 0)
    yield made
    made.log.close()


@pytest.mark.parametrize("num_partitions", [7, 64])
def test_a_ledger_of_other_partitions_balances_is_sealed_and_misses_what_is_lost(
    any_database: Database, tmp_path: Path, num_partitions: int
) -> None:
    made = Ledger(any_database, tmp_path / "log", num_partitions)
    sealed = made.audit(seal=True)
    assert sealed.problems == ()
    assert sealed.generations.total == 3 * EACH + 1
    with any_database.snapshot() as connection:
        seals = set(connection.execute(select(ledger_seal.c.partition)).scalars())
    assert seals == {item % num_partitions for item in range(2 * EACH)}
    for item in (made.answers[OLD][3], made.answers[TODAY][3]):
        made.change(delete(generation).where(is_row(item)))
    told = " ".join(made.audit(deep=True).problems)
    assert made.answers[OLD][3].key in told
    assert made.answers[TODAY][3].key in told
    made.log.close()


def is_row(item: Generation) -> ColumnElement[bool]:
    return generation.c.completion_id == item.completion_id


def joined(topic: str, partition: int) -> Update:
    """A change of the join's position."""
    mine = (position.c.consumer_group == "episodes", position.c.topic == topic, position.c.partition == partition)
    return update(position).where(*mine)


def lose_row(ledger: Ledger) -> str:
    ledger.change(delete(generation).where(is_row(ledger.answers[TODAY][3])))
    return f"generation {ledger.answers[TODAY][3].key} (generations/"


def lose_row_of_a_sealed_day(ledger: Ledger) -> str:
    assert ledger.audit(seal=True).balanced
    ledger.change(delete(generation).where(is_row(ledger.answers[OLD][3])))
    return f"generation {ledger.answers[OLD][3].key} (generations/"


def lose_many_rows(ledger: Ledger) -> str:
    ledger.change(delete(generation).where(generation.c.partition == 2))
    return "(generations/2@0): the join has passed it, and nobody knows it"


def swap_rows(ledger: Ledger) -> str:
    """One row for another: the number stays."""
    other = f"{first_id(TODAY)}-7001-8abc-0"
    ledger.change(update(generation).where(is_row(ledger.answers[TODAY][5])).values(completion_id=other))
    return f"generation {first_id(TODAY)}-7001-8abc-0:0 has a state, and the log does not have it"


def invent_row(ledger: Ledger) -> str:
    with ledger.database.transaction() as connection:
        row = dict(connection.execute(select(generation).where(is_row(ledger.answers[TODAY][0]))).one()._mapping)
        connection.execute(insert(generation).values(row | {"completion_id": f"{first_id(TODAY)}-7001-8abc-1"}))
    return f"generation {first_id(TODAY)}-7001-8abc-1:0 has a state, and the log does not have it"


def move_position(ledger: Ledger) -> str:
    [fresh] = ledger.add(TODAY, 1)
    ends = ledger.log.ends(GENERATIONS)
    [here] = [p for p, end in ends.items() if ledger.log.read(GENERATIONS, p, end - 1, 1)[0].key == fresh.key]
    ledger.change(joined(GENERATIONS, here).values(next_offset=position.c.next_offset + 1))
    return f"generation {fresh.key} (generations/{here}@"


def move_all_positions(ledger: Ledger) -> str:
    fresh = ledger.add(TODAY, 40)
    for partition, end in ledger.log.ends(GENERATIONS).items():
        ledger.change(joined(GENERATIONS, partition).values(next_offset=end))
    return f"generation {fresh[0].key} (generations/"


def lose_joined_signal(ledger: Ledger) -> str:
    ledger.change(delete(signal).where(signal.c.id == ledger.said[0]))
    return f"signal {ledger.said[0]} of default: it was acknowledged, and nobody has it"


def lose_signal_in_the_outbox(ledger: Ledger) -> str:
    said = ledger.say(ledger.answers[TODAY][1])
    assert ledger.audit().balanced
    ledger.change(delete(outbox))
    return f"signal {said} of default: it was acknowledged, and nobody has it"


def lose_signal_in_the_log(ledger: Ledger) -> str:
    said = ledger.say(ledger.answers[TODAY][1])
    Relay("feedback", ledger.database, ledger.log).flush()
    assert ledger.audit().balanced
    for partition, end in ledger.log.ends("signals").items():
        ledger.change(joined("signals", partition).values(next_offset=end))
    return f"signal {said} of default: it was acknowledged, and nobody has it"


def lose_waiting_signal(ledger: Ledger) -> str:
    name = {"tenant": "default", "id": "waits", "received_at": 0.0, "record": b""}
    waits = insert(waiting_signal).values(kind="join_key", value="order-7", **name)
    ledger.change(insert(received_signal).values(body_hash="", **name), waits)
    assert ledger.audit().balanced
    ledger.change(delete(waiting_signal))
    return "signal waits of default: it was acknowledged, and nobody has it"


def lose_received_signal(ledger: Ledger) -> str:
    ledger.change(delete(received_signal).where(received_signal.c.id == ledger.said[0]))
    return f"signal {ledger.said[0]} of default has a state, and was never received"


def lose_dead_letter(ledger: Ledger) -> str:
    ledger.change(delete(dead_letter))
    return f"generation {ledger.dead} (generations/1@"


def lose_redriven_record(ledger: Ledger) -> str:
    with ledger.database.transaction() as connection:
        redrive(connection, find(connection, states=("skipped",)), time.time())
    assert ledger.audit().generations.states["pending"] == 1
    ledger.change(delete(outbox))
    return f"generation {ledger.dead} (generations/1@"


def lose_day(ledger: Ledger) -> str:
    with ledger.database.transaction() as connection:
        ledger.delete_day(connection, OLDER)
    return f"generation {ledger.answers[OLDER][0].key} (generations/"


def lose_day_that_the_log_no_longer_has(ledger: Ledger) -> str:
    with ledger.database.transaction() as connection:
        ledger.delete_day(connection, OLDER)
    ledger.expire(OLDER)
    return f"the join read {3 * EACH + 3} records, and {2 * EACH + 3} are known"


def lose_seal(ledger: Ledger) -> str:
    ledger.drop(OLDER)
    assert ledger.audit().balanced
    ledger.change(delete(ledger_seal))
    return f"generation {ledger.answers[OLDER][0].key} (generations/"


def change_seal(ledger: Ledger) -> str:
    ledger.drop(OLDER)
    mine = (ledger_seal.c.day == OLDER.isoformat(), ledger_seal.c.partition == 0)
    ledger.change(update(ledger_seal).where(*mine).values(hash_dropped="ab"))
    return f"{OLDER}, generations/0: {EACH // 4} rows were dropped"


def change_counts_of_seal(ledger: Ledger) -> str:
    assert ledger.audit(seal=True).balanced
    ledger.change(update(ledger_seal).where(ledger_seal.c.day == OLD.isoformat()).values(states={"trained": 2}))
    return f"{OLD}, generations/0: its seal counts 2 by state and {EACH // 4} in all"


def lose_row_before_its_day_is_dropped(ledger: Ledger) -> str:
    ledger.change(delete(generation).where(is_row(ledger.answers[OLDER][3])))
    ledger.drop(OLDER)
    return f"{OLDER}, generations/3: {EACH // 4 - 1} rows were dropped"


def flip_state(ledger: Ledger) -> str:
    ledger.change(update(generation).where(is_row(ledger.answers[TODAY][2])).values(state="filtered"))
    return f"generation {ledger.answers[TODAY][2].key} is filtered, and no outcome says so"


def flip_state_back(ledger: Ledger) -> str:
    ledger.change(update(generation).where(is_row(ledger.answers[TODAY][2])).values(state="pending"))
    return f"generation {ledger.answers[TODAY][2].key} is pending, and its outcomes say trained"


def name_no_state(ledger: Ledger) -> str:
    ledger.change(update(generation).where(is_row(ledger.answers[TODAY][2])).values(state="vanished"))
    return "1 generations have the state 'vanished', which has no name"


def lose_outcome(ledger: Ledger) -> str:
    ledger.change(delete(outcome).where(outcome.c.key == ledger.answers[TODAY][2].key, outcome.c.state == "trained"))
    return f"generation {ledger.answers[TODAY][2].key} is trained, and no outcome says so"


def lose_count(ledger: Ledger) -> str:
    ledger.change(delete(generation_count))
    return f"the join read {3 * EACH + 3} records, and {3 * EACH + 1} are known"


def lose_record(ledger: Ledger) -> str:
    ledger.log._connection(GENERATIONS).execute("DELETE FROM record WHERE partition = 1 AND offset = 2")
    return "the log lacks 1 records between others, from generations/1@2 on"


def lose_end_of_the_log(ledger: Ledger) -> str:
    end = ledger.log.ends(GENERATIONS)[1]
    ledger.log._connection(GENERATIONS).execute("DELETE FROM record WHERE partition = 1 AND offset >= ?", (end - 2,))
    return f"generations/1 ends at {end - 2}, and it had {end} records"


def damage_record(ledger: Ledger) -> str:
    ledger.log._connection(GENERATIONS).execute("UPDATE record SET value = x'00' WHERE partition = 1 AND offset = 2")
    return "damaged in the log: generations/1 2"


LOSSES: list[Callable[[Ledger], str]] = [
    lose_row, lose_row_of_a_sealed_day, lose_many_rows, swap_rows, invent_row, move_position, move_all_positions,
    lose_joined_signal, lose_signal_in_the_outbox, lose_signal_in_the_log, lose_waiting_signal, lose_received_signal,
    lose_dead_letter, lose_redriven_record, lose_day, lose_day_that_the_log_no_longer_has, lose_seal, change_seal,
    change_counts_of_seal, lose_row_before_its_day_is_dropped, flip_state, flip_state_back, name_no_state, lose_outcome,
    lose_count, lose_record, lose_end_of_the_log, damage_record,
]  # fmt: skip


@pytest.mark.parametrize("plant", LOSSES, ids=lambda plant: plant.__name__)
@pytest.mark.slow
def test_a_planted_loss_is_found_and_named(ledger: Ledger, plant: Callable[[Ledger], str]) -> None:
    name = plant(ledger)
    problems = ledger.audit(deep=plant is lose_row_of_a_sealed_day).problems
    assert any(name in problem for problem in problems), problems


def test_a_dropped_day_stays_in_the_identity_with_its_states(ledger: Ledger) -> None:
    before = ledger.audit()
    ledger.drop(OLDER)
    after = ledger.audit()
    assert after.problems == ()
    assert after.generations == before.generations
    ledger.expire(OLDER)
    expired = ledger.audit()
    assert expired.problems == ()
    assert expired.generations == before.generations
    assert len(expired.notes) == 4
    assert f"{OLDER}, generations/0: the log no longer has {EACH // 4} of its records" in expired.notes[0]
    ledger.drop(OLD)
    assert ledger.audit().generations == before.generations


def test_what_was_sealed_before_it_was_dropped_needs_no_log(ledger: Ledger) -> None:
    before = ledger.audit(seal=True)
    assert before.notes == (f"sealed; 2 days closed: {OLDER}, {OLD}",)
    ledger.drop(OLDER)
    ledger.expire(OLD)
    after = ledger.audit()
    assert (after.problems, after.notes, after.generations) == ((), (), before.generations)


def test_rows_that_the_log_no_longer_has_are_told_by_day_unless_they_were_sealed(ledger: Ledger) -> None:
    ledger.expire(OLDER)
    told = ledger.audit()
    assert told.problems == ()
    assert [note.split(",")[0] for note in told.notes] == [OLDER.isoformat()] * 4
    assert told.generations.states["trained"] == 3 * EACH


def test_a_closed_day_is_not_read_again_until_something_comes_for_it(ledger: Ledger) -> None:
    before = ledger.audit(seal=True)
    with ledger.database.snapshot() as connection:
        assert {key.day for key, seal in read_seals(connection).items() if seal.closed_at} == {str(OLDER), str(OLD)}
        assert connection.execute(select(ledger_mark.c.partition)).all()
    assert ledger.audit() == before._replace(notes=())
    late = ledger.add(OLD, 3)
    assert ledger.audit().generations.states["pending"] == 3
    ledger.work()
    ledger.train(late)
    ledger.work()
    after = ledger.audit(seal=True)
    assert after.problems == ()
    assert after.generations.total == before.generations.total + 3
    assert ledger.audit().generations == after.generations
    ledger.change(delete(generation).where(is_row(late[0])))
    assert ledger.audit().balanced  # its day is closed
    [broken, *_] = ledger.audit(deep=True).problems[1:]
    assert broken.startswith(f"{OLD}, generations/")


def test_a_record_that_came_twice_around_a_mark_is_no_loss(ledger: Ledger) -> None:
    ledger.audit(seal=True)
    ledger.log.append(
        [message(GENERATIONS, item.key, item) for day in (OLD, TODAY) for item in ledger.answers[day][1:2]]
    )
    ledger.work()
    found = ledger.audit()
    assert found.problems == ()
    assert found.notes == ("sealed days have records that came again: run it with --seal once",)
    assert ledger.audit(seal=True).balanced
    assert ledger.audit()[-1] == ()


def test_seals_that_changed_meanwhile_are_not_overwritten(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_late(connection: Connection, new: NewSeals, now: float) -> None:
        add_dropped(connection, OLDER.isoformat(), {0: KeySum(1, 1)}, {0: {"trained": 1}}, now)
        write_seals(connection, new, now)

    monkeypatch.setattr("commands.audit.write_seals", write_late)
    with pytest.raises(Conflict, match="run it again"):
        ledger.audit(seal=True)
    with ledger.database.snapshot() as connection:
        assert read_seals(connection) == {}


def test_the_seal_of_a_day_is_printed_without_an_audit(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_day(ledger.database, OLD.isoformat()) == 1
    assert "never sealed" in capsys.readouterr().out
    ledger.audit(seal=True)
    assert print_day(ledger.database, OLD.isoformat()) == 0
    assert f"generations/0: closed, {EACH // 4}, hash " in capsys.readouterr().out
    assert sum(seal.sealed.num for seal in sealed_day(ledger.database, OLD.isoformat()).values()) == EACH
