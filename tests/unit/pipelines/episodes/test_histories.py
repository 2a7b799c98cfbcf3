"""Random histories through the real log, database, outbox, join, ledger and rewards.

Every history has duplicates, reordered arrivals and crashes between any two steps; at its end everything that was sent
has exactly one state, the same one that the history without any trouble gives, and no revision is scored twice.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from contracts.database import Database, insert_new
from contracts.event_log import Message
from contracts.faults import FaultPoint
from contracts.ledger import generation_counts, generation_states, signal_counts, signal_states
from contracts.local_log import LocalLog
from contracts.outbox import message
from contracts.records import Experience, Outcome, Signal, decode
from contracts.tables import received_signal
from contracts.topics import EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from contracts.worker import Worker
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from tests.fakes import BOOKING_TASK, Crash, a_generation, a_signal, everything

TASKS = {"booking": BOOKING_TASK}
# A crash here is an exception, not a power cut: a folder in memory saves ten thousand fsyncs.
_SHM = Path("/dev/shm")  # noqa: S108 the folder is made by tempfile
MEMORY = _SHM if _SHM.is_dir() else None
Result = tuple[dict[str, tuple[str, str]], dict[str, str], dict[str, float | None]]


class System:
    """Episodes and rewards over one folder; `crash` decides at each fault point whether the process dies there."""

    def __init__(self, folder: Path, crash: Callable[[], bool] = lambda: False) -> None:
        self.database = Database(f"sqlite:///{folder / 'millrace.db'}")
        self.log = LocalLog(folder / "log")
        self.now = 103.0
        self._crash = crash
        self.fault: FaultPoint = self._maybe_crash
        self._workers: dict[str, Worker[Any]] = {}

    def work(self, name: str) -> None:
        """One step of a worker, which may die at any fault point and is then built anew from what is durable."""
        try:
            self._worker(name).step()
        except Crash:
            del self._workers[name]

    def settle(self) -> None:
        """No more crashes: every window closes, everything is worked off."""
        self._crash = lambda: False
        self.now = 1e6
        for _ in range(6):
            for name in ("episodes", "rewards"):
                self._worker(name).step()

    def close(self) -> None:
        self.database.close()
        self.log.close()

    def result(self) -> Result:
        with self.database.snapshot() as connection:
            generations, signals = generation_states(connection), signal_states(connection)
            assert generation_counts(connection).unexplained == 0
            assert signal_counts(connection).unexplained == 0
        newest: dict[str, Experience] = {}
        seen: set[tuple[str, int]] = set()
        for record in everything(self.log, EXPERIENCES):
            experience = decode(Experience, record.value)
            first = (experience.key, experience.revision) not in seen
            seen.add((experience.key, experience.revision))
            # Consumers keep the first of each (key, revision); the relay may have sent it twice.
            if first and (experience.key not in newest or newest[experience.key].revision < experience.revision):
                newest[experience.key] = experience
        return generations, signals, {key: item.reward for key, item in newest.items()}

    def _worker(self, name: str) -> Worker[Any]:
        if name not in self._workers:
            clock = lambda: self.now  # noqa: E731 the clock is the test's, read at each call
            handler = EpisodesHandler(TASKS, clock) if name == "episodes" else RewardsHandler(TASKS, clock)
            self._workers[name] = Worker(handler, self.database, self.log, clock=clock, fault=self._at)
        return self._workers[name]

    def _at(self, place: str) -> None:
        self.fault(place)

    def _maybe_crash(self, place: str) -> None:
        if self._crash():
            raise Crash(place)


def a_history(seed: int) -> list[Message]:
    """A handful of generations, and signals about them: right, wrong, repeated, retracted, late, conflicting."""
    chance = random.Random(seed)
    messages: list[Message] = []
    for _ in range(chance.randint(1, 4)):
        finish = chance.choice(["stop", "stop", "stop", "cancelled"])
        identity = uuid.UUID(int=chance.getrandbits(128) & ~(0xF << 76) & ~(3 << 62) | 7 << 76 | 2 << 62)
        about = a_generation(
            chance.choice(['{"party":2}', "nonsense"]),
            completion_id=f"chatcmpl-{identity}",
            finish_reason=finish,
            purpose=chance.choice(["user", "user", "user", "sentinel"]),
            task=chance.choice(["booking"] * 5 + ["gone"]),
        )
        messages.append(message(GENERATIONS, about.key, about))
        for number in range(chance.randint(0, 3)):
            received = chance.choice([102.0, 105.0, 500.0])
            name, value = chance.choice([("accepted", True), ("accepted", False), ("comment", "hm"), ("nosuch", 1)])
            id_ = f"fb_{identity}_{number}"
            signal = a_signal(about, name, value, id=id_, at=102.0 + number, received_at=received)
            messages.append(message(SIGNALS, signal.key, signal))
            if chance.random() < 0.2:
                taken_back = type(signal)(
                    **{f: getattr(signal, f) for f in signal.__struct_fields__} | {"retracted": True}
                )
                messages.append(message(SIGNALS, signal.key, taken_back))
    return messages


def interleaved(messages: list[Message], chance: random.Random) -> list[Message]:
    """Any order, except that a signal comes before its own retraction (they share a partition and a sender)."""
    shuffled = messages[:]
    chance.shuffle(shuffled)
    places: dict[bytes, int] = {item.value: place for place, item in enumerate(messages)}
    by_signal: dict[str, list[int]] = {}
    for place, item in enumerate(shuffled):
        if item.topic == SIGNALS:
            by_signal.setdefault(_signal_id(item), []).append(place)
    for spots in by_signal.values():
        for spot, item in zip(spots, sorted((shuffled[s] for s in spots), key=lambda m: places[m.value]), strict=True):
            shuffled[spot] = item
    return shuffled


def play(folder: Path, migrated: Path, messages: list[Message], seed: int | None) -> Result:
    """Feed a history; with a seed: shuffled, with duplicates and crashes. Without: in order, no trouble."""
    shutil.copy(migrated, folder / "millrace.db")
    chance = random.Random(seed)
    system = System(folder, (lambda: chance.random() < 0.15) if seed is not None else (lambda: False))
    try:
        _acknowledge(system.database, messages)
        order = messages if seed is None else interleaved(messages, chance)
        for item in order:
            repeat = seed is not None and chance.random() < 0.3
            system.log.append([item, item] if repeat else [item])
            if seed is not None and chance.random() < 0.6:
                system.work(chance.choice(["episodes", "rewards"]))
        system.settle()
        return system.result()
    finally:
        system.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.integers(0, 10**6), trouble=st.integers(0, 10**6))
@example(history=5154, trouble=0)  # a retraction of what had already lost a conflict
def test_trouble_changes_nothing(migrated: Path, history: int, trouble: int) -> None:
    messages = a_history(history)
    with tempfile.TemporaryDirectory(dir=MEMORY) as calm, tempfile.TemporaryDirectory(dir=MEMORY) as rough:
        assert play(Path(rough), migrated, messages, trouble) == play(Path(calm), migrated, messages, None)


@pytest.mark.parametrize(
    "place",
    ["worker: polled", "worker: before commit", "worker: committed", "relay: appended, not deleted", "relay: deleted"],
)
@pytest.mark.parametrize("name", ["episodes", "rewards"])
def test_a_crash_at_each_point_loses_and_repeats_nothing(migrated: Path, tmp_path: Path, place: str, name: str) -> None:
    shutil.copy(migrated, tmp_path / "millrace.db")
    system = System(tmp_path)
    about = a_generation()
    said = a_signal(about)
    _acknowledge(system.database, [message(SIGNALS, said.key, said)])
    system.log.append([message(GENERATIONS, about.key, about), message(SIGNALS, said.key, said)])
    if name == "rewards":
        system.work("episodes")
    crashed: list[str] = []

    def fault(at: str) -> None:
        if at == place and not crashed:
            crashed.append(at)
            raise Crash(at)

    system.fault = fault
    system.work(name)
    system.settle()
    assert crashed == [place]
    generations, signals, rewards = system.result()
    assert generations == {about.key: ("user", "pending")}
    assert signals == {said.id: "joined"}
    assert rewards == {about.key: 1.0}
    system.close()


def test_outcomes_reach_the_ledger_once(migrated: Path, tmp_path: Path) -> None:
    shutil.copy(migrated, tmp_path / "millrace.db")
    system = System(tmp_path)
    about = a_generation()
    system.log.append([message(GENERATIONS, about.key, about)])
    system.settle()
    states = Counter(decode(Outcome, record.value).state for record in everything(system.log, OUTCOMES))
    assert states == {"unlabelled": 1}
    trained = Outcome(key=about.key, revision=1, epoch=3, state="trained", version=7, writer="training", at=1.0)
    system.log.append([message(OUTCOMES, about.key, trained)] * 2)
    system.settle()
    assert system.result()[0] == {about.key: ("user", "trained")}
    epoch = Outcome(key="", revision=0, epoch=4, state="epoch_started", writer="training", at=2.0)
    system.log.append([message(OUTCOMES, "", epoch)])
    system.settle()
    assert system.result()[0] == {about.key: ("user", "pending")}, "what the trainer did not repeat is void"
    repeated = Outcome(key=about.key, revision=1, epoch=4, state="trained", version=7, writer="training", at=3.0)
    system.log.append([message(OUTCOMES, about.key, repeated)])
    system.settle()
    assert system.result()[0] == {about.key: ("user", "trained")}
    system.close()


def _acknowledge(database: Database, messages: list[Message]) -> None:
    """What feedback's transaction leaves for each acknowledged signal."""
    with database.transaction() as connection:
        for item in messages:
            if item.topic == SIGNALS:
                row = {"tenant": "default", "body_hash": "", "received_at": 0.0, "record": b""}
                insert_new(connection, received_signal, {"id": _signal_id(item), **row})


def _signal_id(item: Message) -> str:
    return decode(Signal, item.value).id
