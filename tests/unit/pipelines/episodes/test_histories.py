"""Random histories through the real log, database, outbox, join, ledger and rewards, and feedback's tables.

Every history has duplicates, reordered arrivals and crashes between any two steps. At its end each record has exactly one state, the
same as in the history without trouble, and no revision is scored twice. Some signals name their answer by a key, some windows are
slower than that of their task, and some requests were tried again, perhaps by two clients with the same body.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from contracts.event_log import Message
from contracts.faults import FaultPoint
from contracts.ledger import generation_counts, signal_counts
from contracts.records import (
    Attempt,
    Episode,
    Experience,
    Generation,
    GenerationBody,
    Outcome,
    Signal,
    decode,
    pack_body,
)
from contracts.tables import received_signal
from contracts.tables.statements import insert_new
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.outbox import Relay, message
from runtime.worker import Worker
from services.feedback import repository as feedback
from services.feedback.requests import ReceivedItem, read_item
from tests.fakes import BOOKING_TASK, Crash, a_generation, a_signal, everything
from tests.ledger_states import generation_states, signal_states

SLOW_TASK = Task.model_validate(
    {
        "name": "slow",
        "window_seconds": 10,
        "trust": {"quarantine_seconds": 4.0},
        "signals": {
            "accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}},
            "comment": {"type": "text", "decisive": False, "window_seconds": 300.0},
            "merged": {"type": "bool", "labels": {"true": 0.5}, "window_seconds": 600.0},
            "reply": {"means": "follow_up"},
        },
    }
)
TASKS = {"booking": BOOKING_TASK, "slow": SLOW_TASK}
# A crash here is an exception, not a power cut: a folder in memory saves ten thousand fsyncs.
_SHM = Path("/dev/shm")  # noqa: S108 the folder is made by tempfile
MEMORY = _SHM if _SHM.is_dir() else None
Event = Message | ReceivedItem | feedback.Retraction
"""A record of the log, a signal that feedback takes in, or one that it takes back."""
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

    def happen(self, event: Event) -> None:
        """Make an event durable: in the log, or in the tables of feedback."""
        if isinstance(event, Message):
            self.log.append([event])
            return
        with self.database.transaction() as connection:
            if isinstance(event, ReceivedItem):
                feedback.add(connection, [event])
            else:
                feedback.retract(connection, [event])

    def work(self, name: str) -> None:
        """One step of a worker, which may crash at any fault point. Then it is built again from its durable state."""
        try:
            if name == "feedback":
                Relay(name, self.database, self.log, self._at).flush()
            else:
                self._worker(name).step()
        except Crash:
            self._workers.pop(name, None)

    def settle(self) -> None:
        """Without more crashes: close every window, one after the other, and process everything."""
        self._crash = lambda: False
        for now, num_rounds in ((self.now, 4), (112.0, 2), (350.0, 2), (1e6, 2)):
            self.now = max(self.now, now)
            for name in ("feedback", "episodes", "rewards") * num_rounds:
                self.work(name)

    def close(self) -> None:
        self.database.close()
        self.log.close()

    def result(self) -> Result:
        with self.database.snapshot() as connection:
            generations, signals = generation_states(connection), signal_states(connection)
            assert generation_counts(connection).unexplained == 0
            assert signal_counts(connection).unexplained == 0
        last = {episode.key: episode for episode in sorted(self._episodes(), key=lambda item: item.revision)}
        waits = [key for key, episode in last.items() if episode.provisional and generations[key][1] != "filtered"]
        assert not waits, "every window has closed, or its answer was replaced"
        newest: dict[str, Experience] = {}
        seen: set[tuple[str, int]] = set()
        for record in everything(self.log, EXPERIENCES):
            experience = decode(Experience, record.value)
            first = (experience.key, experience.revision) not in seen
            seen.add((experience.key, experience.revision))
            # Consumers keep the first of each (key, revision); the relay may have sent it twice.
            if first and (experience.key not in newest or newest[experience.key].revision < experience.revision):
                newest[experience.key] = experience
        # A sample that was replaced before it was scored has no experience; a later one has an experience without a reward.
        rewards = {key: item.reward for key, item in newest.items() if generations[key][1] != "filtered"}
        withdrawn = [item.reward for key, item in newest.items() if generations[key][1] == "filtered"]
        assert withdrawn == [None] * len(withdrawn), "a replaced answer is never learned"
        return generations, signals, rewards

    def _episodes(self) -> list[Episode]:
        return [decode(Episode, record.value) for record in everything(self.log, EPISODES)]

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


def a_history(seed: int) -> list[Event]:
    """A handful of generations, and signals about them: right, wrong, repeated, retracted, late, conflicting."""
    chance = random.Random(seed)
    messages: list[Event] = []
    for number in range(chance.randint(1, 5)):
        started_at = 90.0 + number
        finish = chance.choice(["stop", "stop", "stop", "cancelled"])
        identity = uuid.UUID(int=chance.getrandbits(128) & ~(0xF << 76) & ~(3 << 62) | 7 << 76 | 2 << 62)
        about = a_generation(
            chance.choice(['{"party":2}', "nonsense"]),
            completion_id=f"chatcmpl-{identity}",
            finish_reason=finish,
            purpose=chance.choice(["user", "user", "user", "sentinel"]),
            task=chance.choice(["booking"] * 3 + ["slow"] * 2 + ["gone"]),
            join_key=chance.choice([None, f"order {identity}"]),
            session_id=chance.choice([None, f"session {identity}"]),
            created_at=started_at,
            finished_at=chance.choice([started_at + 0.5, 101.0]),
            num_choices=1,
            attempt=chance.choice([None, *(Attempt("ab", count) for count in (0, 0, 1, 1, 2))]),
        )
        messages.append(message(GENERATIONS, about.key, about))
        for said in range(chance.randint(0, 3)):
            received = chance.choice([102.0, 105.0, 500.0])
            name, value = chance.choice(
                [("accepted", True), ("accepted", False), ("comment", "hm"), ("merged", True), ("nosuch", 1)]
            )
            id_ = f"fb_{identity}_{said}"
            if name != "nosuch" and (target := a_key_of(about, chance)):
                item = {"id": id_, "name": name, "value": value, "at": 102.0 + said, **target}
                messages += keyed(item, received, chance)
                continue
            signal = a_signal(about, name, value, id=id_, at=102.0 + said, received_at=received)
            if chance.random() < 0.1:  # about a choice that never was
                signal = msgspec.structs.replace(signal, choice=1)
            messages.append(message(SIGNALS, signal.key, signal))
            if chance.random() < 0.2:
                taken_back = type(signal)(
                    **{f: getattr(signal, f) for f in signal.__struct_fields__} | {"retracted": True}
                )
                messages.append(message(SIGNALS, signal.key, taken_back))
    return messages


def a_key_of(about: Generation, chance: random.Random) -> dict[str, str]:
    """A key of this answer, if it has one."""
    keys = {"join_key": about.join_key, "session_id": about.session_id}
    name = chance.choice([*keys, None])
    return {name: key} if name and (key := keys[name]) else {}


def keyed(item: dict[str, Any], received_at: float, chance: random.Random) -> list[Event]:
    """A signal about a key, as an app sends it, and perhaps its retraction."""
    events: list[Event] = [read_item(item | {"submitter": {"id": "ann"}}, TASKS, "default", received_at)]
    return events + [feedback.Retraction("default", item["id"], 103.0)] * (chance.random() < 0.2)


def interleaved(messages: list[Event], chance: random.Random) -> list[Event]:
    """A random order, but a signal comes before its own retraction: they share a partition and a sender."""
    shuffled = messages[:]
    chance.shuffle(shuffled)
    places = {id(item): place for place, item in enumerate(messages)}
    by_signal: dict[str, list[int]] = {}
    for place, item in enumerate(shuffled):
        if signal_id := _signal_id(item):
            by_signal.setdefault(signal_id, []).append(place)
    for spots in by_signal.values():
        for spot, item in zip(spots, sorted((shuffled[s] for s in spots), key=lambda m: places[id(m)]), strict=True):
            shuffled[spot] = item
    return shuffled


def play(folder: Path, migrated: Path, messages: list[Event], seed: int | None) -> Result:
    """Feed a history; with a seed: shuffled, with duplicates and crashes. Without: in order, no trouble."""
    shutil.copy(migrated, folder / "millrace.db")
    chance = random.Random(seed)
    system = System(folder, (lambda: chance.random() < 0.15) if seed is not None else (lambda: False))
    try:
        _acknowledge(system.database, messages)
        order = messages if seed is None else interleaved(messages, chance)
        for item in order:
            repeat = seed is not None and chance.random() < 0.3
            for _ in range(1 + repeat):
                system.happen(item)
            if seed is not None and chance.random() < 0.6:
                system.work(chance.choice(["feedback", "episodes", "rewards"]))
        system.settle()
        return system.result()
    finally:
        system.close()


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.integers(0, 10**6), trouble=st.integers(0, 10**6))
@example(history=2134, trouble=1)  # two signals about a cut answer that had been superseded
@example(history=5154, trouble=0)  # a retraction of a signal that had already lost a conflict
def test_trouble_changes_nothing(migrated: Path, history: int, trouble: int) -> None:
    messages = a_history(history)
    with tempfile.TemporaryDirectory(dir=MEMORY) as calm, tempfile.TemporaryDirectory(dir=MEMORY) as rough:
        assert play(Path(rough), migrated, messages, trouble) == play(Path(calm), migrated, messages, None)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_whoever_shares_keys_every_signal_has_one_name_at_every_moment(migrated: Path, seed: int) -> None:
    chance = random.Random(seed)
    events = shared_keys(chance)
    ids = {item.signal.id for item in events if isinstance(item, ReceivedItem)}
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        shutil.copy(migrated, Path(folder) / "millrace.db")
        system = System(Path(folder), lambda: chance.random() < 0.15)
        try:
            for item in interleaved(events, chance):
                system.happen(item)
                system.work(chance.choice(["feedback", "episodes", "rewards"]))
                assert received(system) >= len(signals_of(system))
            system.settle()
            _, signals, _ = system.result()
        finally:
            system.close()
    assert set(signals) >= ids
    assert set(signals) - ids == {id_ for id_ in signals if id_.startswith("follow_up:")}
    assert set(signals.values()) <= {"joined", "late", "conflict", "retracted", "rejected"}
    keys = {item.key.value for item in events if isinstance(item, ReceivedItem) and item.key}
    assert ("rejected" in signals.values()) <= ("unknown" in keys)


def shared_keys(chance: random.Random) -> list[Event]:
    """Conversations of several turns, keys that were used twice, and signals about either, in any order."""
    events: list[Event] = []
    for number in range(chance.randint(2, 6)):
        words = [{"role": "user", "content": str(chance.randint(0, 2))} for _ in range(chance.randint(1, 3))]
        turn = a_generation(
            completion_id=f"chatcmpl-019a0000-{number:04x}-7000-8000-{chance.getrandbits(48):012x}",
            task=chance.choice(["slow", "slow", "booking"]),
            session_id=chance.choice([None, "s1", "s2"]),
            join_key=chance.choice([None, "k1", "k2"]),
            body=pack_body(GenerationBody(messages=words, text="", prompt_ids=b"", completion_ids=b"", logprobs=b"")),
        )
        events.append(message(GENERATIONS, turn.key, turn))
    met = {key for item in events if isinstance(item, Message) for key in _keys_of(decode(Generation, item.value))}
    targets = [*met, ("join_key", "unknown")]
    for number in range(chance.randint(1, 6)):
        target, value = chance.choice(sorted(targets))
        item = {"id": f"fb_{number}", "name": "accepted", "value": chance.random() < 0.5, "at": 102.0, target: value}
        events += keyed(item, chance.choice([102.0, 120.0]), chance)
    return events


def _keys_of(turn: Generation) -> list[tuple[str, str]]:
    keys = {"join_key": turn.join_key, "session_id": turn.session_id}
    return [(name, value) for name, value in keys.items() if value is not None]


def received(system: System) -> int:
    """How many signals were received; the identity holds."""
    with system.database.snapshot() as connection:
        counts = signal_counts(connection)
    assert counts.unexplained == 0
    return counts.total


def signals_of(system: System) -> dict[str, str]:
    with system.database.snapshot() as connection:
        return signal_states(connection)


@pytest.mark.slow
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
    assert system.result()[0] == {about.key: ("user", "unlabelled")}, (
        "the trainer's word is void: the one before stands"
    )
    repeated = Outcome(key=about.key, revision=1, epoch=4, state="trained", version=7, writer="training", at=3.0)
    system.log.append([message(OUTCOMES, about.key, repeated)])
    system.settle()
    assert system.result()[0] == {about.key: ("user", "trained")}
    system.close()


def _acknowledge(database: Database, messages: Sequence[Event]) -> None:
    """Write the row that feedback leaves for each acknowledged signal."""
    with database.transaction() as connection:
        for item in messages:
            if isinstance(item, Message) and item.topic == SIGNALS:
                row = {"tenant": "default", "body_hash": "", "received_at": 0.0, "record": b""}
                insert_new(connection, received_signal, {"id": _signal_id(item), **row})


def _signal_id(item: Event) -> str | None:
    if isinstance(item, ReceivedItem):
        return item.signal.id
    if isinstance(item, feedback.Retraction):
        return item.id
    return decode(Signal, item.value).id if item.topic == SIGNALS else None
