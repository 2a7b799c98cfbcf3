from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.event_log import LogRecord
from contracts.records import Experience
from pipelines.episodes.lifecycle import SampleState, supersede
from pipelines.training.known.experiences import worth
from pipelines.training.samples.intake import Intake
from pipelines.training.state import Fate, TrainerState
from tests.fakes import a_generation
from tests.unit.pipelines.training.builders import experience, segment, whole

SEGMENT = segment([1, 2], [3], [-1.0])


def at(offset: int, partition: int = 0) -> LogRecord:
    return LogRecord("experiences", partition, offset, "", b"", 0.0)


def item(key: str, revision: int = 1, **changes: Any) -> Experience:
    return experience(SEGMENT, key=key, revision=revision, **changes)


def unlabelled(key: str, revision: int) -> Experience:
    return item(key, revision, reward=None, status="unlabelled")


def read(intake: Intake, *records: tuple[LogRecord, Experience]) -> None:
    for record, content in records:
        intake.passed(record)
        intake.offer(record, content, 0.0)


def waiting(intake: Intake) -> list[tuple[str, int]]:
    return [(held.experience.key, held.experience.revision) for held in intake.waiting]


def test_the_first_of_each_revision_wins_and_a_higher_one_replaces_it_in_place() -> None:
    intake = Intake(TrainerState())
    read(intake, (at(0), item("a")), (at(1), item("b")), (at(2), item("a", reward=0.0)))
    assert [held.experience.reward for held in intake.waiting] == [1.0, 1.0]
    read(intake, (at(3), item("a", 2, reward=0.25)), (at(4), item("a", 1)))
    assert waiting(intake) == [("a", 2), ("b", 1)]
    assert intake.waiting[0].experience.reward == 0.25


def test_what_a_later_try_replaced_is_dropped_by_the_joins_withdrawal() -> None:
    about = a_generation()
    _, withdrawal = supersede(SampleState(about, 0, 100.0, None, revision=1), "chatcmpl-later", 110.0).sends
    assert isinstance(withdrawal, Experience)
    intake = Intake(TrainerState())
    read(intake, (at(0), item(about.key)), (at(1), withdrawal))
    assert waiting(intake) == []
    read(intake, (at(2), item(about.key)), (at(3), item(about.key, 4)))
    assert waiting(intake) == [(about.key, 4)], "taken up again, it is learned as the newest revision"


@pytest.mark.parametrize(
    "ignored",
    [
        item("a", purpose="sentinel"),
        item("a", purpose="rollout"),
        item("a", reward=None, status="unlabelled"),
        item("a", reward=None, status="unscored", fault="infra"),
        item("a", reward=0.0, status="scored", fault="infra"),
    ],
)
def test_what_has_no_reward_or_no_user_never_enters(ignored: Experience) -> None:
    intake = Intake(TrainerState())
    read(intake, (at(0), ignored))
    assert waiting(intake) == []
    assert intake.decided_positions() == {"experiences": {0: 1}}


def test_an_imported_sample_of_any_age_is_named_and_never_waits() -> None:
    state = TrainerState(expired_before=float("inf"))
    intake = Intake(state)
    fate = Fate(1, "off_support", "provider")
    assert intake.offer(at(0), item("a", purpose="imported", reward=None, status="unlabelled"), 0.0) is None
    assert intake.offer(at(1), item("a", purpose="imported"), 0.0) == fate == state.fates["a"]
    assert intake.offer(at(2), item("a", purpose="imported"), 0.0) is None, "delivered twice"
    assert waiting(intake) == []


@pytest.mark.parametrize("fate", [Fate(0, "trained", "text", version=1), Fate(1, "quarantined", "rollback")])
def test_what_was_decided_about_an_imported_sample_outlasts_its_later_rewards(fate: Fate) -> None:
    state = TrainerState()
    state.fates["a"] = fate
    told = Intake(state).offer(at(0), item("a", 2, purpose="imported"), 0.0)
    assert told is not None
    assert (told.state, told.reason, told.version, told.newest) == (fate.state, fate.reason, fate.version, 2)


def test_a_fault_of_the_model_is_learned_from() -> None:
    intake = Intake(TrainerState())
    read(intake, (at(0), item("a", reward=0.0, fault="model")))
    assert waiting(intake) == [("a", 1)]


def test_a_reward_taken_back_before_it_was_learned_stays_taken_back() -> None:
    state = TrainerState()
    intake = Intake(state)
    read(intake, (at(0), item("a")), (at(1), unlabelled("a", 2)), (at(2), item("a")))
    assert waiting(intake) == []
    read(Intake(state), (at(0), item("a")))
    assert waiting(Intake(state)) == []
    read(intake, (at(3), item("a", 3)))
    assert waiting(intake) == [("a", 3)]


TRAINED = Fate(1, "trained", version=4, applied=1.0)


@pytest.mark.parametrize(
    ("fate", "later", "reason"),
    [
        (TRAINED, item("a", 2), "same_reward"),
        (TRAINED, item("a", 2, reward=2.0, weight=0.5), "same_reward"),
        (TRAINED, unlabelled("a", 2), "unlabelled"),
        (TRAINED, item("a", 2, reward=None, status="unscored", fault="infra"), "unscored"),
        (TRAINED, item("a", 2, reward=0.0, fault="infra"), "unscored"),
        (Fate(1, "trained", version=4), item("a", 2, reward=0.0), "unknown_reward"),
    ],
)
def test_a_later_revision_that_teaches_nothing_is_late_once_and_says_why(
    fate: Fate, later: Experience, reason: str
) -> None:
    intake = Intake(TrainerState(fates={"a": fate}))
    assert intake.offer(at(0), item("a", 1), 0.0) is None
    assert intake.offer(at(1), later, 0.0) == fate.passed_over(2, reason)
    assert intake.offer(at(2), item("a", 2, reward=0.0), 0.0) is None
    assert waiting(intake) == []
    assert intake.decided_positions() == {}


def test_a_later_revision_that_is_worth_something_else_waits_like_a_sample() -> None:
    state = TrainerState(fates={"a": TRAINED})
    intake = Intake(state)
    read(intake, (at(0), item("a", 2, reward=0.0)), (at(1), item("b")), (at(2), item("a", 2)))
    assert waiting(intake) == [("a", 2), ("b", 1)]
    assert (intake.corrects(intake.waiting[0].experience), intake.corrects(item("b"))) == (TRAINED, None)
    assert intake.decided_positions() == {"experiences": {0: 0}}
    read(intake, (at(3), item("a", 3, reward=0.5)))
    assert waiting(intake) == [("a", 3), ("b", 1)]
    assert intake.decided_positions() == {"experiences": {0: 0}}, "its first record was not decided"


@pytest.mark.parametrize("back", [item("a", 3), unlabelled("a", 3)])
def test_a_correction_that_is_taken_back_while_it_waits_is_never_learned(back: Experience) -> None:
    intake = Intake(TrainerState(fates={"a": TRAINED}))
    read(intake, (at(0), item("a", 2, reward=0.0)), (at(1), back), (at(2), item("a", 2, reward=0.0)))
    assert waiting(intake) == []
    assert intake.decided_positions() == {"experiences": {0: 3}}


def test_what_was_not_meant_to_count_may_count_later() -> None:
    state = TrainerState(fates={"a": Fate(1, "filtered", "no_weight")})
    intake = Intake(state)
    read(intake, (at(0), item("a")), (at(1), item("a", 2)))
    assert waiting(intake) == [("a", 2)]
    assert intake.corrects(intake.waiting[0].experience) is None
    read(intake, (at(2), unlabelled("a", 3)), (at(3), item("a", 3)))
    assert waiting(intake) == []


def test_a_rollback_drops_corrections_of_what_it_took_out() -> None:
    state = TrainerState(fates={"a": TRAINED, "b": TRAINED})
    intake = Intake(state)
    read(intake, (at(0), item("a", 2, reward=0.0)), (at(1), item("b", 2, reward=0.0)), (at(2), item("c")))
    state.fates["a"] = Fate(1, "quarantined", "rollback")
    intake.roll_back()
    assert waiting(intake) == [("b", 2), ("c", 1)]
    assert state.fates["a"] == Fate(2, "quarantined", "rollback")


@pytest.mark.parametrize("state", ["stale", "off_support", "filtered", "quarantined"])
def test_other_fates_cover_later_revisions(state: str) -> None:
    trainer_state = TrainerState(fates={"a": Fate(1, state, "why")})  # type: ignore[arg-type]  # parametrized text
    assert Intake(trainer_state).offer(at(0), item("a", 2), 0.0) == Fate(2, state, "why")  # type: ignore[arg-type]


def test_positions_stay_before_what_is_not_decided() -> None:
    intake = Intake(TrainerState(positions={"experiences": {0: 10, 1: 3}}))
    assert (intake.position(1), intake.position(2)) == (3, 0)
    read(intake, (at(10), item("a")), (at(11), item("b")), (at(3, 1), item("c")), (at(12), item("a", 2)))
    intake.decide("c", Fate(0, "filtered"))
    assert intake.decided_positions() == {"experiences": {0: 10, 1: 4}}
    intake.decide("a", Fate(2, "filtered"))
    assert intake.decided_positions() == {"experiences": {0: 11, 1: 4}}
    assert intake.position(0) == 13


def test_a_batch_is_full_or_old_enough() -> None:
    intake = Intake(TrainerState())
    limits: dict[str, Any] = {"is_full": False, "min_batch_size": 2, "max_wait_seconds": 10.0}
    for offset, now in enumerate((100.0, 105.0)):
        intake.offer(at(offset), item(str(offset)), now)
    assert not intake.is_ready(109.9, **limits)
    assert intake.is_ready(110.0, **limits)
    assert not intake.is_ready(110.0, **(limits | {"min_batch_size": 3}))
    assert intake.is_ready(105.0, **(limits | {"is_full": True}))
    assert not Intake(TrainerState()).is_ready(1e9, **limits)


deliveries = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()), max_size=12)


@given(deliveries, st.integers(0, 12), st.integers(1, 3))
def test_duplicates_and_crashes_never_decide_a_key_twice(
    history: list[tuple[str, int, bool]], crash_at: int, batch_size: int
) -> None:
    """Reads a log, decides and saves batches; after a crash it reads again from the saved positions."""
    records = [
        (at(n), item(key, rev) if scored else unlabelled(key, rev)) for n, (key, rev, scored) in enumerate(history)
    ]
    state, decided = TrainerState(), list[str]()
    for end in (crash_at, len(records)):
        intake = Intake(state)
        for record, content in records[intake.position(0) : end]:
            read(intake, (record, content))
            if len(intake) == batch_size:
                for held in intake.waiting:
                    decided.append(held.experience.key)
                    intake.decide(held.experience.key, Fate(held.experience.revision, "trained"))
        state.positions = intake.decided_positions()
    assert len(decided) == len(set(decided))
    last = {key: (rev, scored) for key, rev, scored in sorted(history)}
    assert {held.experience.key for held in intake.waiting}.isdisjoint(decided)
    for held in intake.waiting:
        assert held.experience.revision == max(rev for key, rev, _ in history if key == held.experience.key)
    assert all(key in last for key in decided)


revisions = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.sampled_from([None, 0.0, 0.5, 1.0]), st.booleans()),
    max_size=14,
)


class Learned:
    """The applied reward by key, and the checkpoint that a crash returns to."""

    def __init__(self) -> None:
        self.state, self.applied = TrainerState(), dict[str, float]()
        self._saved = (msgspec.json.encode(self.state, enc_hook=whole), self.applied.copy())

    def take(self, intake: Intake, size: int) -> None:
        batch = intake.draw(size)
        for sample in batch.samples:
            assert sample.key not in self.applied, "a sample is learned once"
            self.applied[sample.key] = worth(sample)
            intake.decide(sample.key, Fate.trained(sample, 1.0))
        for lesson in batch.lessons:
            later = lesson.experience
            self.applied[later.key] += lesson.difference
            before = self.state.fates[later.key]
            intake.decide(later.key, before.corrected(later.revision, worth(later), later.weight))

    def save(self, intake: Intake) -> None:
        self.state.positions = intake.decided_positions()
        self._saved = (msgspec.json.encode(self.state, enc_hook=whole), self.applied.copy())

    def crash(self) -> Intake:
        self.state, self.applied = msgspec.json.decode(self._saved[0], type=TrainerState), self._saved[1].copy()
        return Intake(self.state)


@given(revisions, st.lists(st.integers(1, 14), max_size=3), st.integers(1, 3))
def test_applied_rewards_sum_to_the_last_revision_whatever_happens_between(
    history: list[tuple[str, int, float | None, bool]], crashes: list[int], batch_size: int
) -> None:
    """A batch is taken as soon as it is full; the flag of a record says that a checkpoint follows it."""
    rewards: dict[tuple[str, int], float | None] = {}
    records = []
    for number, (key, revision, reward, _) in enumerate(history):
        first = rewards.setdefault((key, revision), reward)
        status = "unlabelled" if first is None else "scored"
        records.append((at(number), item(key, revision, reward=first, status=status)))
    learned = Learned()
    for end in [*(min(crash, len(records)) for crash in crashes), len(records)]:
        intake = learned.crash()
        for number in range(intake.position(0), end):
            read(intake, records[number])
            if len(intake) >= batch_size:
                learned.take(intake, batch_size)
            if history[number][3]:
                learned.save(intake)
    learned.take(intake, 100)

    newest = {key: reward for (key, _), reward in sorted(rewards.items(), key=lambda entry: entry[0])}
    for key, total in learned.applied.items():
        assert total == learned.state.fates[key].applied_now
        assert newest[key] in {None, total}
    assert {key for key, reward in newest.items() if reward is not None} <= learned.applied.keys()
