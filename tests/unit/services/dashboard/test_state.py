import math
import time

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import delete, func, insert, select, update

from contracts import ledger, tables
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, SIGNALS
from runtime.lease import Lease
from runtime.settings import Settings
from services.dashboard.formatting import percent, version
from services.dashboard.live.charts import MAX_BUCKETS, MIN_IN_BUCKET, MIN_LABELS, answers_over_time
from services.dashboard.live.queries import ScoredAnswer
from services.dashboard.live.state import State
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import reading, writing
from tests.worlds.dashboard.seed import HOSTILE, NUM_VERSIONS, POLICY, REFUSED, STARTED, WAITING


@pytest.fixture
def state(seeded: Settings, reader_of: ReaderOf) -> State:
    return reader_of(seeded).read(STARTED)


def edge_of(state: State, target: str, source: str) -> tuple[int, float | None]:
    return next(
        (edge.num_waiting, edge.oldest_at) for edge in state.edges if (edge.source, edge.target) == (source, target)
    )


def test_the_ledger_of_the_page_is_the_ledger(state: State, seeded: Settings) -> None:
    with reading(seeded) as connection:
        generations, signals = ledger.generation_counts(connection), ledger.signal_counts(connection)
        num_void = connection.execute(
            select(tables.generation.c.choice).where(
                tables.generation.c.state_writer == "training", tables.generation.c.state_epoch == 1
            )
        ).all()
    assert num_void, "the seed should hold samples of an undone epoch"
    shown = dict(zip(state.generations.names, state.generations.counts, strict=True))
    shown["pending"] -= WAITING[GENERATIONS]
    assert {name: count for name, count in shown.items() if count} == generations.states
    assert state.generations.total - WAITING[GENERATIONS] == generations.total == 600
    shown = dict(zip(state.signals.names, state.signals.counts, strict=True))
    assert {name: count for name, count in shown.items() if count} == signals.states
    assert state.signals.total == signals.total
    assert state.generations.problems == state.signals.problems == []
    assert [identity.problems for identity in state.learning.values()] == [[], [], []]


def test_every_version_balances(state: State) -> None:
    assert [row.version for row in state.generations.versions] == list(range(NUM_VERSIONS - 1, -1, -1))
    assert all(row.total == sum(row.counts) == 60 for row in state.generations.versions)


def test_rates_and_lags_come_from_the_log_and_the_positions(state: State) -> None:
    for source, target, topic in (
        ("generations", "episodes", GENERATIONS),
        ("signals", "episodes", SIGNALS),
        ("episodes", "rewards", EPISODES),
    ):
        num_waiting, oldest_at = edge_of(state, target, source)
        assert num_waiting == WAITING[topic]
        assert oldest_at is not None
        assert STARTED - 60 < oldest_at < STARTED
    recent = {stage.name: stage.num_recent for stage in state.stages}
    assert recent["generations"] == pytest.approx(603 * 60 / 280, abs=12)
    assert recent["rewards"] == pytest.approx((600 + WAITING[EXPERIENCES]) * 60 / 280, abs=12)
    assert min(recent.values()) > 0


def test_a_candidate_waits_for_release_and_live_has_arrived(state: State) -> None:
    num_waiting, oldest_at = edge_of(state, "release", "training")
    assert num_waiting == 1
    assert oldest_at is not None
    assert edge_of(state, "live", "release") == (0, None)


def test_the_timeline_tells_each_version_apart(state: State) -> None:
    versions = {row.version: row for row in state.versions}
    assert list(versions) == list(range(NUM_VERSIONS, -1, -1))
    assert versions[NUM_VERSIONS].status == "candidate"
    assert versions[NUM_VERSIONS - 1].status == "live"
    assert versions[REFUSED].status == "refused"
    assert versions[REFUSED].reason == HOSTILE
    assert versions[2].status == "accepted"
    assert versions[0].status == "base"
    assert versions[2].kind == "step"
    assert 0 < (versions[2].density or 0) < 1
    assert versions[0].kind == "full"
    assert versions[2].num_accepted <= versions[2].num_labelled > 0


def test_accuracy_is_compared_with_the_best_before(state: State) -> None:
    live = next(row for row in state.versions if row.status == "live")
    tiles = {tile.name: tile.value for tile in state.tiles}
    assert tiles["Sentinel accuracy"] == percent(live.accuracy)
    assert tiles["Live"] == version(live.version)
    assert (live.accuracy or 0) > (live.best_accuracy or 1)
    refused = state.acceptance["refused"]
    assert [accuracy for accuracy in refused if accuracy is not None] == [0.861]
    assert (state.live, state.rollback_to, state.candidate) == (NUM_VERSIONS - 1, NUM_VERSIONS - 2, NUM_VERSIONS)


def test_curves_run_forward_in_time(state: State) -> None:
    times = [at for at in state.curves["at"] if at is not None]
    assert times == sorted(times)
    assert len(state.curves["entropy"]) == len(times) == 75
    assert all(value is not None and math.isfinite(value) for value in state.curves["gradient_norm"])


def test_a_lost_generation_raises_the_alarm(small: Settings, reader_of: ReaderOf) -> None:
    with writing(small) as connection:
        key = connection.execute(select(tables.generation.c.completion_id).limit(1)).scalar_one()
        connection.execute(delete(tables.generation).where(tables.generation.c.completion_id == key))
    assert reader_of(small).read(time.time()).generations.problems


def test_a_lost_signal_raises_the_alarm(small: Settings, reader_of: ReaderOf) -> None:
    with writing(small) as connection:
        key = connection.execute(select(tables.signal.c.id).limit(1)).scalar_one()
        connection.execute(delete(tables.signal).where(tables.signal.c.id == key))
    problems = reader_of(small).read(time.time()).signals.problems
    assert problems == ["acknowledged signals that are neither joined nor on their way: 1"]


def test_answers_that_no_monitor_counted_raise_the_alarm(small: Settings, reader_of: ReaderOf) -> None:
    assert reader_of(small).read(time.time()).learning["monitors"].problems == []
    with writing(small) as connection:
        connection.execute(delete(tables.behaviour).where(tables.behaviour.c.metric == "null"))
    state = reader_of(small).read(time.time())
    assert state.learning["monitors"].problems[0].startswith("monitors of task")
    assert next(tile for tile in state.tiles if tile.name == "Ledger").value == "unbalanced"
    assert REGISTRY.get_sample_value("millrace_ledger_unexplained", {"kind": "monitors"})


def test_a_signal_in_the_outbox_is_on_its_way(small: Settings, reader_of: ReaderOf) -> None:
    with writing(small) as connection:
        connection.execute(
            insert(tables.received_signal).values(
                id="new", tenant="default", body_hash="", received_at=time.time(), record=b""
            )
        )
        connection.execute(
            insert(tables.outbox).values(process="feedback", topic=SIGNALS, route=0, key="new", value=b"")
        )
    state = reader_of(small).read(time.time())
    assert state.signals.problems == []
    assert edge_of(state, "episodes", "signals")[0] == WAITING[SIGNALS] + 1


def test_a_signal_that_waits_for_its_answer_raises_no_alarm(small: Settings, reader_of: ReaderOf) -> None:
    database = small.database()
    row = {"id": "new", "tenant": "default", "received_at": time.time(), "record": b""}
    with database.transaction() as connection:
        connection.execute(insert(tables.received_signal).values(body_hash="", **row))
        connection.execute(insert(tables.waiting_signal).values(kind="key", value="order 1", **row))
    database.close()
    assert reader_of(small).read(time.time()).signals.problems == []


def test_a_version_rolled_back_over_says_so(small: Settings, reader_of: ReaderOf) -> None:
    with writing(small) as connection:
        connection.execute(
            update(tables.assignment)
            .where(tables.assignment.c.arm == "live")
            .values(version=7, epoch=tables.assignment.c.epoch + 1)
        )
        connection.execute(
            insert(tables.assignment_change).values(
                policy=POLICY, arm="live", epoch=99, version=7, share=1.0, writer="ann", reason="bad", at=time.time()
            )
        )
    state = reader_of(small).read(time.time())
    statuses = {row.version: row.status for row in state.versions}
    assert (statuses[9], statuses[8], statuses[7], statuses[5]) == ("rolled back", "rolled back", "live", "accepted")
    assert state.rollback_to == 5
    num_waiting, oldest_at = edge_of(state, "live", "release")
    assert num_waiting == 1
    assert oldest_at == pytest.approx(time.time(), abs=5)


def test_an_empty_home_has_an_empty_page(bare: Settings, reader_of: ReaderOf) -> None:
    state = reader_of(bare).read(time.time())
    assert sum(state.generations.counts) == sum(state.signals.counts) == 0
    assert (state.live, state.candidate, state.rollback_to) == (None, None, None)
    assert (state.generations.total, state.signals.total) == (0, 0)
    assert state.generations.problems == state.signals.problems == []
    assert all(stage.num_recent == 0 for stage in state.stages)
    assert all(edge.num_waiting == 0 for edge in state.edges)
    assert (state.versions, state.rewards["at"], state.curves["at"], state.acceptance["at"]) == ([], [], [], [])


def test_a_step_whose_metrics_are_no_object_hides_no_other(small: Settings, reader_of: ReaderOf) -> None:
    def points() -> int:
        return len(reader_of(small).read(time.time()).curves["at"])

    whole = points()
    database, steps = small.database(), tables.training_step.c
    with database.transaction() as connection:
        newest = connection.execute(select(func.max(steps.at))).scalar_one()
        connection.execute(update(tables.training_step).where(steps.at == newest).values(metrics=["?"]))
    database.close()
    assert points() == whole - 1 > 0


def test_labels_since_the_newest_step_wait_for_training(state: State, seeded: Settings) -> None:
    with reading(seeded) as connection:
        stepped_at = connection.execute(select(func.max(tables.training_step.c.at))).scalar_one()
        waiting = connection.execute(
            select(tables.score.c.at).where(tables.score.c.at > stepped_at, tables.score.c.reward.is_not(None))
        ).scalars()
        assert edge_of(state, "training", "rewards") == (len(times := list(waiting)), min(times))


def test_a_run_of_answers_keeps_silence_apart_from_refusal() -> None:
    answers = [
        ScoredAnswer(100.0 + number, 1, (None, 1.0, 0.0, 1.0)[number % 4]) for number in range(MIN_IN_BUCKET - 1)
    ]
    silence = [
        ScoredAnswer(200.0 + number, 1, 1.0 if 1 <= number < MIN_LABELS else None)
        for number in range(MIN_IN_BUCKET + 1)
    ]
    columns = answers_over_time([*reversed(silence), *reversed(answers)])
    assert columns["labelled"] == [pytest.approx(18 / 25), pytest.approx(4 / 25)]
    assert columns["accept_rate"] == [pytest.approx(12 / 18), None]
    assert columns["reward"] == columns["accept_rate"]
    assert columns["at"] == [pytest.approx((100 * 24 + 276 + 200) / 25), pytest.approx(213.0)]


@pytest.mark.parametrize("number", [0, 1, 13, 30, 400, 5000])
def test_a_chart_has_a_bounded_number_of_points(number: int) -> None:
    columns = answers_over_time([ScoredAnswer(float(-place), 1, 1.0) for place in range(number)])
    assert bool(number) <= len(columns["at"]) <= MAX_BUCKETS


def test_a_policy_without_a_trainer_is_told(seeded: Settings, reader_of: ReaderOf) -> None:
    def missing() -> float | None:
        return REGISTRY.get_sample_value("millrace_trainer_missing_seconds", {"policy": POLICY})

    reader, database = reader_of(seeded), seeded.database()
    with database.transaction() as connection:
        connection.execute(delete(tables.training_lease))
    reader.read(STARTED)
    assert 0.0 < (missing() or 0.0) < 60.0, "since this dashboard began to look"
    lease = Lease.acquire(database, POLICY)
    reader.read(STARTED)
    assert missing() == 0.0
    with database.transaction() as connection:
        connection.execute(update(tables.training_lease).values(renewed_at=time.time() - 90))
    reader.read(STARTED)
    assert (missing() or 0.0) >= 90.0
    lease.release()
    database.close()
