import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, insert, select, update

from contracts import assignments, holds, train_points
from contracts.assignments import HOLDOUT, PROVIDER
from contracts.error_budget import BudgetShown
from contracts.records import Provided, encode
from contracts.tables import engine_replica, generation, train, train_point
from runtime.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.live import reader as module
from services.dashboard.rollout.queries import read_levels, read_rollout
from services.dashboard.rollout.state import Rollout
from services.dashboard.rollout.words import budget_sentence, side_sentences, slot_sentences, unit_sentence
from tests.fakes import a_generation
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.unit.services.dashboard.test_routes import sign_in
from tests.worlds.dashboard.databases import reading, writing
from tests.worlds.dashboard.seed import POLICY
from tests.worlds.dashboard.seed_rollout import (
    BLESSED,
    CANARY_VERSION,
    NUM_POINTS,
    SHARE,
    add_train,
    evidence,
    seed_rollout,
)


def rollout_of(settings: Settings, reader_of: ReaderOf, now: float) -> Rollout:
    return reader_of(settings).read(now).rollout


def change(settings: Settings, *statements: Any) -> None:
    with writing(settings) as connection:
        for statement in statements:
            connection.execute(statement)


def test_the_train_on_the_track_is_shown_with_its_evidence(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    found = rollout_of(small, reader_of, now)
    running = found.train
    assert running is not None
    assert (running.version, running.blessed, running.state, running.stage, running.share) == (
        CANARY_VERSION,
        BLESSED,
        "canary",
        1,
        SHARE,
    )
    assert running.stages == [0.01, 0.05, 0.2, 0.5]
    assert (running.stage_at, running.stage_until, running.deadline) == (now - 90, now + 200, now - 400 + 14_400)
    assert running.units == "drawn by answer: nobody sends `user`"
    assert (running.next, running.left_out) == ("the stage needs more units", "3 clock ahead")
    reward = next(metric for metric in running.metrics if metric.name == "reward")
    assert (reward.kind, reward.num_canary, reward.num_live, reward.needed_units) == ("primary", 412, 1648, 3100)
    assert reward.low == pytest.approx(0.012 - 0.041)
    assert reward.high == pytest.approx(0.012 + 0.041)
    assert running.sample_ratio is not None
    assert (running.sample_ratio.expected, running.sample_ratio.verdict) == (0.2, "fine")
    assert [(row.version, row.state) for row in found.past] == [
        (7, "shipped"),
        (6, "revoked"),
        (5, "withdrawn"),
        (4, "shipped"),
    ]
    assert len(found.points["at"]) == NUM_POINTS
    assert found.slots_say == []
    assert found.budget.startswith("5 trains in the last year: ")


def test_a_train_that_ended_is_not_on_the_track(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    with writing(small) as connection:
        add_train(connection, now, state="revoked", ended_at=now, evidence=evidence(now))
    found = rollout_of(small, reader_of, now)
    assert found.train is None
    assert [row.state for row in found.past] == ["revoked"]


def test_a_share_is_that_of_the_arm_not_of_a_guess(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    with writing(small) as connection:
        add_train(connection, now, state="shadow", stage=-1)
    found = rollout_of(small, reader_of, now)
    assert found.train is not None
    assert (found.train.share, found.train.metrics, found.train.stage_until) == (0.0, [], None)


def test_evidence_of_another_form_hides_nothing_else(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    odd = {**evidence(now), "sample_ratio": "fine"}
    odd["metrics"] = [{"name": 7}, *odd["metrics"][:1]]
    change(small, update(train).where(train.c.version == CANARY_VERSION).values(evidence=odd))
    found = rollout_of(small, reader_of, now)
    assert found.train is not None
    assert [metric.name for metric in found.train.metrics] == ["reward"]
    assert found.train.sample_ratio is None


def test_slots_are_those_of_engines_that_are_there(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    change(small, update(engine_replica).values(slots={"live": 1, "candidate": None}))
    found = rollout_of(small, reader_of, now)
    assert found.slots == ["candidate", "live"]
    assert [line.split(":")[0] for line in found.slots_say] == [
        "No engine has a canary slot now", "No engine has a learning slot", "No engine has a hold-out slot",
    ]  # fmt: skip
    found = rollout_of(small, reader_of, now + 60)
    assert found.slots == []
    assert len(found.slots_say) == 1


def test_price_and_latency_stand_beside_quality_where_a_provider_is_in_front(
    small: Settings, reader_of: ReaderOf
) -> None:
    now = time.time()
    assert side_sentences({}, {}) == []
    with writing(small) as connection:
        held = assignments.read(connection, POLICY)
        assignments.move_held(connection, POLICY, held, PROVIDER, None, writer="ann", reason="r", share=0.9)
        seen = select(generation.c.completion_id).where(generation.c.policy == POLICY, generation.c.purpose == "user")
        keys = list(connection.execute(seen.order_by(generation.c.created_at.desc()).limit(20)).scalars())
        for place, key in enumerate(keys):
            cost = Provided(origin="openai", cost=0.002)
            record = a_generation(created_at=now, finished_at=now + 1 + place, provided=cost, spans=())
            rows = generation.c.completion_id == key
            arm = PROVIDER if place else "live"  # as a home without own versions logged it before
            connection.execute(update(generation).where(rows).values(arm=arm, record=encode(record)))
    lines = rollout_of(small, reader_of, now).slots_say
    front, provider, own = lines[-3:]
    assert front == "By the draw 10.0 % of the users get own versions, the others the provider."
    assert provider.startswith("The provider: 20 of the newest ")
    assert provider.endswith("an accepted answer; 10 s in the middle, 19 s for the slowest twentieth.")
    assert own.startswith("Own versions: ")


@pytest.mark.parametrize(("until", "held"), [(None, "freeze"), (5.0, "freeze"), (-5.0, "")])
def test_a_hold_is_said_until_it_ends(small: Settings, reader_of: ReaderOf, until: float | None, held: str) -> None:
    now = time.time()
    end = None if until is None else now + until
    with writing(small) as connection:
        holds.freeze(connection, policy=POLICY, until=end, writer="ann", reason="a launch", now=now - 10)
    found = rollout_of(small, reader_of, now)
    assert (found.held, "ann: a launch" in found.hold) == (held, bool(held))


def test_the_lift_is_that_of_the_holdout_of_today(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    lift = rollout_of(small, reader_of, now).lift
    assert (lift.version, lift.share, lift.num_holdout, lift.num_live) == (0, 0.02, 8 * 39, 390 * 39)
    assert lift.low is not None
    assert lift.high is not None
    assert lift.low < (lift.difference or 0) < lift.high
    assert list(lift.tasks) == [POLICY]
    assert lift.since == pytest.approx(time.time(), abs=60)
    with writing(small) as connection:
        for version, share in ((0, 0.03), (4, 0.03)):
            held = assignments.read(connection, POLICY)[HOLDOUT]
            assignments.move(connection, policy=POLICY, arm=HOLDOUT, version=version, share=share, expected_epoch=held.epoch,
                             writer="ann", reason="again")  # fmt: skip
    lift = rollout_of(small, reader_of, now).lift
    assert (lift.version, lift.difference, lift.num_holdout) == (4, None, 0), "points of v0 say nothing about v4"


def test_a_holdout_that_was_drawn_by_answer_is_not_called_people(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    facts = {"version": 0, "num_holdout": 3, "unit_kinds": {"answer": 2, "session": 1}}
    change(small, insert(train_point).values(policy=POLICY, subject=train_points.LIFT, at=now, values=facts))
    assert rollout_of(small, reader_of, now).lift.unit_kinds == {"answer": 2, "session": 1}


def test_what_the_pages_ask_costs_the_same_however_many_trains_and_answers_there_are(
    small: Settings, reader_of: ReaderOf
) -> None:
    now = time.time()
    seed_rollout(small, now)
    reader = reader_of(small)
    reader.read(now)
    plans: dict[str, list[str]] = {}

    def explain(_c: object, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        # The cursor is the statement's own: it runs the plan first, then the statement.
        found = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        plans[statement] = [row[3] for row in found]

    with reading(small) as connection:
        event.listen(connection, "before_cursor_execute", explain)
        read_rollout(connection, POLICY, now)
        assert len(read_levels(connection, POLICY, now)) == 5
    assert not [statement for statement in plans if "train_answer" in statement], "it has a row for every answer"
    of_trains = [steps for statement, steps in plans.items() if "FROM train " in statement.replace("\n", " ")]
    assert len(of_trains) == 3
    assert all(len(steps) == 1 and steps[0].startswith("SEARCH train USING") for steps in of_trains), of_trains


def test_the_year_is_read_less_often_than_the_train(
    small: Settings, reader_of: ReaderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, num = time.time(), [0]
    seed_rollout(small, now)

    def counted(*_: object) -> list[float]:
        num[0] += 1
        return [0.002]

    monkeypatch.setattr(module, "read_levels", counted)
    reader = reader_of(small)
    for _ in range(5):
        reader.read(now)
    assert num == [1]


def test_without_a_holdout_there_is_no_lift(small: Settings, reader_of: ReaderOf) -> None:
    assert rollout_of(small, reader_of, time.time()).lift.version is None


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({}, "an arm is drawn for each user; none has an answer yet"),
        ({"user": 9}, "an arm is drawn for each user"),
        ({"answer": 4, "session": 2}, "drawn by answer and session: nobody sends `user`"),
        (
            {"user": 75, "answer": 25},
            "an arm is drawn for each user; 25 % by answer, because those requests have no `user`",
        ),
    ],
)
def test_the_unit_is_what_was_drawn(kinds: dict[str, int], said: str) -> None:
    assert unit_sentence("user", kinds) == said


def test_the_budget_adds_up_over_the_trains() -> None:
    assert budget_sentence([], {}) == "No train has left in the last year."
    assert "at most 18.1 %" in budget_sentence([0.002] * 100, {})
    assert budget_sentence([0.002], {}).startswith("1 train in")
    left = {"learning": BudgetShown(4.0, 0.08), "trains": BudgetShown(4.0, 0.0004)}
    assert "Of the budget of 4 false verdicts a year, trains may spend 0.0004 now" in budget_sentence([0.002], left)
    assert "versions in the learning arm may spend 0.08 now" in budget_sentence([0.002], left)


def test_nothing_is_missing_with_all_slots() -> None:
    assert slot_sentences({"live", "candidate", "learning", "canary", "holdout"}, num_engines=1) == []
    assert "goes live at once" in slot_sentences({"live", "candidate"}, num_engines=1)[0]


def test_a_canary_slot_that_is_gone_is_said_with_what_to_do() -> None:
    [said, *_] = slot_sentences({"live", "candidate"}, num_engines=1, has_proved=True)
    assert "none goes live unproven" in said
    assert "enabled = false" in said
    [said] = slot_sentences({"live"}, num_engines=1, is_enabled=False, has_proved=True)
    assert said.startswith("[train] enabled is false")


def test_the_time_that_does_not_count_moves_the_deadline(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    paused = {**evidence(now), "paused_seconds": 600.0}
    change(small, update(train).where(train.c.version == CANARY_VERSION).values(evidence=paused))
    found = rollout_of(small, reader_of, now)
    assert found.train is not None
    assert found.train.deadline == now - 400 + 600 + 14_400


def test_the_pages_are_for_operators(small: Settings) -> None:
    with TestClient(create_app(small), follow_redirects=False) as client:
        for path in ("/rollout", "/lift"):
            assert "data-csrf" not in client.get(path).text
        sign_in(client, small, "app")
        assert {client.get(path).status_code for path in ("/rollout", "/lift")} == {403}
        sign_in(client, small, "operator")
        for path, words in (("/rollout", "Earlier trains"), ("/lift", "millrace policy holdout")):
            page = client.get(path)
            assert (page.status_code, words in page.text) == (200, True)


def test_the_shares_of_all_arms_add_up(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(small, now)
    shares = {arm.arm: arm.share for arm in reader_of(small).read(now).arms if arm.arm != "candidate"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["holdout"] == pytest.approx(0.02)
    assert shares["live"] == pytest.approx(0.98 * 0.95 * 0.95)
