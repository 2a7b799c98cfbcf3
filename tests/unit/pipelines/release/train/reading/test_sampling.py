"""Which answers are compared, and what is known of them at an age."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.arms import Unit, control_fraction, draw_arm, logged_draw
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, PROVIDER, Assignment
from contracts.draws import DrawnVersion, LoggedDraw, hash_of
from contracts.records import Generation, Score
from contracts.sampling import Sampling, Span
from pipelines.release.train.reading import sampling
from pipelines.release.train.reading.sampling import (
    CONTROL,
    RESCUED,
    Evidence,
    Room,
    evidence_of,
    facts_of,
    heard_row,
    sampling_hash,
)
from tests.fakes import BOOKING_TASK, a_draw, a_generation
from tests.hostile import an_experience

TASKS = {"booking": BOOKING_TASK}
SECRET = b"of a home"


def an_answer(
    arm: str = CANARY,
    version: int = 5,
    *,
    unit: str = "default/ann",
    train: tuple[int, float] = (5, 0.05),
    **changes: Any,
) -> Generation:
    """An answer of a drawn arm, by the version that it has, while live is v4."""
    held = {CANARY: train[0], HOLDOUT: 0, LIVE: 4, LEARNING: 6}[arm]
    draw = a_draw(held, unit, canary=train)
    values: dict[str, Any] = {"arm_probability": train[1], "spans": (Span(0, version),), "draw": draw}
    return a_generation(arm=arm, **(values | changes))


def found(record: Generation, ratio: float = 4.0) -> Evidence | str | None:
    return evidence_of(record, TASKS, ratio, SECRET)


def test_every_answer_of_the_canary_is_compared_whatever_its_gateway_took_for_the_time() -> None:
    expected = Evidence(5, 5, hash_of("acme/ann"), "user")
    for at in (0.0, 100.0, 1e9):
        assert found(an_answer(unit="acme/ann", created_at=at)) == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (an_answer(draw=None, arm_probability=1.0), "not_drawn"),
        (an_answer(LIVE, 4, draw=None, arm_probability=1.0), None),
        (an_answer(LIVE, 3, train=(5, 0.9)), "other_version"),
        (an_answer(LIVE, 4, draw=a_draw(4)), None),
        (an_answer(task="gone"), "unknown_task"),
        (an_answer(purpose="shadow"), None),
        (an_answer(LEARNING), None),
    ],
)
def test_what_was_not_drawn_is_left_out(record: Generation, reason: str | None) -> None:
    assert found(record) == reason


@pytest.mark.parametrize("spans", [(Span(0, 4),), (Span(0, 5), Span(3, 4))])
def test_an_answer_of_the_canary_with_tokens_of_live_is_a_failure_of_the_canary(spans: tuple[Span, ...]) -> None:
    assert found(an_answer(spans=spans)) == Evidence(5, 5, hash_of("default/ann"), "user", is_rescued=True)
    row = {"at": 100.0, "revision": 0, "metrics": dict(RESCUED)}
    assert heard_row(row, an_experience(reward=1.0, scored_at=105.0), BOOKING_TASK, 10.0) is None


def test_a_drawn_answer_without_a_token_counts_in_both_arms() -> None:
    for arm, version in ((CANARY, 5), (LIVE, 4)):
        silent = an_answer(arm, spans=(), finish_reason="error", train=(5, 0.9))
        assert found(silent) == Evidence(version, 5, hash_of("default/ann"), "user")
        assert facts_of(silent, None)["errors"] == 1.0


@pytest.mark.slow
def test_controls_are_sampled_by_unit_alone_and_four_times_as_many_as_the_canary() -> None:
    arms = {arm: Assignment("p", arm, version, share, 1) for arm, version, share in ((LIVE, 4, 1.0), (CANARY, 5, 0.05))}
    people = [f"default/person {number}" for number in range(20_000)]
    live = [name for name in people if draw_arm(arms, name, SECRET).arm == LIVE]
    controls = {name for name in live if found(an_answer(LIVE, 4, unit=name)) == Evidence(4, 5, hash_of(name), "user")}
    wanted = control_fraction(0.05, 4.0)
    assert len(controls) / len(live) == pytest.approx(wanted, abs=4 * math.sqrt(wanted / len(live)))
    assert len(controls) / (len(people) - len(live)) == pytest.approx(4.0, rel=0.1)
    # Neither the answer nor how it ended decides, and a later stage keeps the units of an earlier one.
    worse = {name for name in live if found(an_answer(LIVE, 4, unit=name, finish_reason="length")) is not None}
    kept = {name for name in live if found(an_answer(LIVE, 4, unit=name, train=(5, 0.2))) is not None}
    assert worse == controls
    assert controls < kept


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_of_a_provider_as_many_units_are_compared_as_there_would_be_of_live(share: float) -> None:
    arms = {
        arm: Assignment("p", arm, version, part, 1)
        for arm, version, part in ((LIVE, 4, 1.0), (HOLDOUT, 0, 0.1), (CANARY, 5, 0.05), (PROVIDER, None, share))
    }
    by_arm: dict[str, list[Any]] = {CANARY: [], PROVIDER: []}
    for number in range(4_000):
        name = f"person {number}"
        drawn = draw_arm(arms, name, SECRET)
        record = a_generation(
            arm=drawn.arm,
            arm_probability=drawn.probability,
            spans=(),
            draw=logged_draw(arms, drawn.arm, Unit("user", name)),
        )
        by_arm.setdefault(drawn.arm, []).append(found(record))
    compared = [item for item in by_arm[PROVIDER] if item is not None]
    assert {(item.version, item.compared_with) for item in compared} == {(-1, 5)}
    assert len(compared) / len(by_arm[CANARY]) == pytest.approx(4.0, rel=0.25)


def test_another_train_compares_other_units() -> None:
    people = [f"person {number}" for number in range(3_000)]

    def controls(version: int) -> set[str]:
        return {name for name in people if found(an_answer(LIVE, 4, unit=name, train=(version, 0.05))) is not None}

    both = controls(5) & controls(6)
    assert len(both) == pytest.approx(3_000 * control_fraction(0.05, 4.0) ** 2, rel=0.4)


def test_the_lift_compares_as_many_of_live_as_the_hold_out_has() -> None:
    assert found(an_answer(HOLDOUT, 0)) == Evidence(0, 0, hash_of("default/ann"), "user")
    people = [f"person {number}" for number in range(5_000)]
    seen = [found(an_answer(LIVE, 4, draw=a_draw(4, name, holdout=0.02))) for name in people]
    controls = [item for item in seen if isinstance(item, Evidence)]
    assert {item.compared_with for item in controls} == {0}
    assert len(controls) / len(people) == pytest.approx(0.02 / 0.98, rel=0.25)


def test_answers_are_compared_at_equal_sampling() -> None:
    hashes = [
        sampling_hash(Sampling(max_tokens=9, temperature=1.0, seed=3)),
        sampling_hash(Sampling(max_tokens=16, temperature=1.0)),
        sampling_hash(Sampling(max_tokens=16, temperature=0.5)),
        sampling_hash(Sampling(max_tokens=16, temperature=1.0, constraint="json_schema")),
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_an_answer_that_ended_early_says_nothing_about_lengths() -> None:
    record = a_generation(finish_reason="length", created_at=100.0, finished_at=102.0)
    assert facts_of(record, record.open()) == {
        "truncated": 1.0,
        "errors": 0.0,
        "cancelled": 0.0,
        "seconds": math.log(2.1),
        "tokens": math.log1p(2),
    }
    assert facts_of(record, None).keys() == {"truncated", "errors", "cancelled", "seconds"}
    for reason, errors in (("cancelled", 0.0), ("error", 1.0)):
        facts = {"truncated": 0.0, "errors": errors, "cancelled": 1.0 - errors}
        assert facts_of(a_generation(finish_reason=reason), None) == facts


def test_what_nobody_feels_counts_for_little_and_a_second_counts() -> None:
    def log_seconds(seconds: float) -> float:
        return facts_of(a_generation(finish_reason="stop", created_at=100.0, finished_at=100.0 + seconds), None)[
            "seconds"
        ]

    assert log_seconds(0.0634) - log_seconds(0.05) < math.log1p(0.1)
    assert log_seconds(2.0) - log_seconds(1.5) > math.log1p(0.25)
    assert log_seconds(-1.0) == log_seconds(0.0)


class TestScores:
    row = {"at": 100.0, "revision": 0, "metrics": {"empty": 0.0}}  # noqa: RUF012 never changed

    def test_a_reward_is_normalised_and_clipped(self) -> None:
        wide = BOOKING_TASK.model_copy(update={"reward": BOOKING_TASK.reward.model_copy(update={"low": -1.0})})
        for reward, expected in ((1.0, 1.0), (0.0, 0.5), (-3.0, 0.0), (None, None)):
            change = heard_row(self.row, an_experience(reward=reward, scored_at=105.0), wide, 10.0)
            assert change is not None
            assert change["reward"] == expected

    def test_silence_is_not_a_word_of_a_user(self) -> None:
        silent = an_experience(reward=0.5, scored_at=111.0, scores=(Score(name="shape", grader="x", value=1.0),))
        spoken = an_experience(reward=None, scored_at=111.0, status="unlabelled", scores=an_experience().scores)
        changes = [heard_row(self.row, said, BOOKING_TASK, 10.0) for said in (silent, spoken)]
        assert [change and change["metrics"]["heard"] for change in changes] == [0.0, 1.0]

    @pytest.mark.parametrize(
        ("held", "revision", "scored_at", "age", "counts"),
        [
            (0, 1, 111.0, 10.0, True),
            (0, 1, 900.0, 10.0, True),  # late graders: the content is that of the task's window
            (1, 2, 111.0, 10.0, True),
            (1, 2, 900.0, 10.0, False),  # a user who spoke after the age
            (2, 1, 111.0, 10.0, False),
            (1, 1, 111.0, 10.0, False),
            (0, 1, 900.0, 5.0, False),
            (0, 1, 104.0, 5.0, True),
            (1, 2, 900.0, 1000.0, True),
        ],
    )
    def test_only_what_was_known_at_the_age_counts(
        self, *, held: int, revision: int, scored_at: float, age: float, counts: bool
    ) -> None:
        said = an_experience(revision=revision, scored_at=scored_at)
        assert (heard_row({**self.row, "revision": held}, said, BOOKING_TASK, age) is not None) == counts


ARMS = {arm: Assignment("p", arm, version, share, 1) for arm, version, share in ((LIVE, 4, 1.0), (LEARNING, 6, 0.05))}


def drawn_of(person: str, arms: dict[str, Assignment] = ARMS) -> Generation:
    """The answer that a person gets."""
    unit = Unit("user", f"default/{person}")
    arm, probability = draw_arm(arms, unit.name, SECRET)
    spans = (Span(0, arms[arm].version or 0),)
    return a_generation(arm=arm, arm_probability=probability, spans=spans, draw=logged_draw(arms, arm, unit))


def test_the_learning_arm_is_compared_with_four_times_as_many_units_of_live() -> None:
    records = [drawn_of(f"person {number}") for number in range(8_000)]
    kept = [(record.arm, row) for record in records if isinstance(row := found(record), Evidence)]
    num = {arm: sum(1 for one, _ in kept if one == arm) for arm in (LEARNING, LIVE)}
    assert 0.044 * 8_000 < num[LEARNING] < 0.056 * 8_000
    assert 3.5 < num[LIVE] / num[LEARNING] < 4.5
    assert {(row.compared_with, row.is_control) for arm, row in kept if arm == LIVE} == {(6, True)}
    assert {(row.compared_with, row.is_control) for arm, row in kept if arm == LEARNING} == {(6, False)}


def test_controls_of_the_learning_arm_are_never_controls_of_the_same_versions_train() -> None:
    """The same hash chooses both, so a train of 1% would otherwise find five times as many of live as it was promised."""
    draw = LoggedDraw("", "user", 4, DrawnVersion(7, 0.005), None, DrawnVersion(7, 0.05))
    kept = [
        found(an_answer(LIVE, 4, draw=replace(draw, unit=hash_of(f"person {number}")), arm_probability=0.9), 1.0)
        for number in range(8_000)
    ]
    rows = [row for row in kept if isinstance(row, Evidence)]
    assert {row.compared_with for row in rows} == {7}
    of_train = sum(1 for row in rows if not row.is_control)
    assert 20 < of_train < 60
    assert 1450 < len(rows) - of_train < 1850


def test_a_version_that_everybody_has_needs_no_guard() -> None:
    arms = {**ARMS, LIVE: ARMS[LIVE]._replace(version=6)}
    assert {found(drawn_of(f"person {number}", arms)) for number in range(200)} == {None}


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(sampling, "LEARNING_ROWS", 3)
    monkeypatch.setattr(sampling, "HELD_ROWS", 3)
    return Room(lambda: 0.0)


def test_both_sides_of_the_learning_arm_end_together(room: Room) -> None:
    assert [room.take(arm, 5, is_held=False) for arm in (LEARNING, CONTROL, CONTROL, LEARNING, CONTROL)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert room.take(LEARNING, 6, is_held=False)
    assert room.take(LIVE, 5, is_held=False), "the train of the same version has room of its own"


def test_a_train_is_bounded_only_while_nothing_can_move(room: Room) -> None:
    assert [room.take(arm, 5, is_held=False) for arm in (CANARY, LIVE) * 3] == [True] * 6
    assert not room.take(CANARY, 5, is_held=True)
    assert not room.take(LIVE, 5, is_held=True)
    assert room.take(HOLDOUT, 5, is_held=True)
    assert room.take(CANARY, 5, is_held=False)


def test_a_new_process_counts_what_is_there() -> None:
    now = 0.0
    room = Room(lambda: now)
    room.look(lambda: {(LEARNING, 5): sampling.LEARNING_ROWS - 1, (CONTROL, 5): 1})
    assert not room.take(LEARNING, 5, is_held=False)
    now += 60.0
    room.look(dict)
    assert room.take(LEARNING, 5, is_held=False), "the rows were deleted"
