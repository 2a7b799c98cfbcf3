from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from prometheus_client import REGISTRY

from contracts.assignments import Assignment
from contracts.errors import InvalidSettings, Unavailable, WeightsRefused
from policy.weights import tensors_of
from services.engine.follower import Follower, UpdateProblem, due, next_problem
from tests.worlds.engines.memory_store import StoreInMemory
from tests.worlds.engines.tiny import assigned, make_engine, make_store, tiny_model
from weights.tensors import root_of


def problem(version: int = 7, retry_at: float = 10.0) -> UpdateProblem:
    return UpdateProblem(version=version, code="not_found", message="gone", attempts=1, retry_at=retry_at)


def test_an_arm_is_due_when_it_holds_another_version() -> None:
    assert due(wanted=2, held=1, problem=None, now=0)
    assert due(wanted=1, held=2, problem=None, now=0), "rollback"
    assert due(wanted=1, held=None, problem=None, now=0)
    assert not due(wanted=1, held=1, problem=None, now=0)


def test_a_failed_version_waits_and_another_does_not() -> None:
    assert not due(wanted=7, held=1, problem=problem(), now=9)
    assert due(wanted=7, held=1, problem=problem(), now=10)
    assert due(wanted=8, held=1, problem=problem(), now=0)


def test_waits_double_up_to_half_a_minute_and_start_anew_for_another_version() -> None:
    error = WeightsRefused("payload_hash", "damaged")
    waits, last = [], None
    for _ in range(8):
        last = next_problem(last, 7, error, now=100.0)
        waits.append(last.retry_at - 100.0)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert last is not None
    assert (last.code, last.attempts) == ("payload_hash", 8)
    assert next_problem(last, 8, error, now=100.0).attempts == 1


def test_after_an_hour_without_assignments_they_are_looked_for_within_seconds() -> None:
    last = None
    for _ in range(360):
        last = next_problem(last, None, Unavailable("the link is cut"), now=100.0)
    assert last is not None
    assert last.retry_at - 100.0 == pytest.approx(2.0)


def test_steps_bring_the_engine_along_and_keep_what_serves() -> None:
    store = make_store(2)
    wanted: dict[str, Assignment] = {"live": assigned(1)}
    engine = make_engine(store)
    follower = Follower(engine, lambda: wanted, on_exit=lambda: None)
    follower.step(now=0)
    wanted["live"] = assigned(5)
    follower.step(now=0)
    follower.step(now=0.1)
    assert engine.versions() == {"live": 1}
    assert [version for version, _ in store.staged] == [1, 5], "the second step was too early"
    assert follower.problems()["live"].code == "not_found"
    assert REGISTRY.get_sample_value("millrace_trouble", {"name": "update of live"}) == 1.0
    store.add(5, store.weights[2], parent=2)
    follower.step(now=1)
    assert engine.versions() == {"live": 5}
    assert follower.problems() == {}
    assert REGISTRY.get_sample_value("millrace_trouble", {"name": "update of live"}) == 0.0
    engine.close()


def test_other_weights_than_those_that_were_assigned_are_refused_by_name() -> None:
    store = make_store(3)
    engine = make_engine(store)
    wanted = {"live": assigned(1, root_of(store.weights[1]))}
    follower = Follower(engine, lambda: wanted, on_exit=lambda: None)
    follower.step(now=0)
    assert engine.versions() == {"live": 1}
    wanted["live"] = assigned(2, root_of(store.weights[3]))
    follower.step(now=0)
    assert engine.versions() == {"live": 1}
    assert follower.problems()["live"].code == "wrong_root"
    wanted["live"] = assigned(2, root_of(store.weights[2]))
    follower.step(now=100)
    wanted["live"] = assigned(1, root_of(store.weights[3]))
    follower.step(now=200)
    assert engine.versions() == {"live": 2}, "nor on the way back, which asks no store"
    engine.close()


@pytest.mark.parametrize("wanted", [assigned(1), assigned(1, run="run-2"), assigned(1, run="test")])
def test_no_start_takes_the_weights_of_another_run(wanted: Assignment) -> None:
    store = StoreInMemory(run="run-2")
    store.add(1, tensors_of(tiny_model(1)))
    engine = make_engine(store, run="test")
    follower = Follower(engine, lambda: {"live": wanted}, on_exit=lambda: None)
    follower.step(now=0)
    assert engine.versions() == {}
    assert follower.problems()["live"].code == "wrong_run"
    assert [asked for asked, _ in store.staged] == [], "not even fetched"
    engine.close()


def test_no_swap_takes_a_version_that_was_assigned_of_another_run() -> None:
    store = make_store(3)
    engine = make_engine(store)
    wanted = {"live": assigned(1, run="test")}
    follower = Follower(engine, lambda: wanted, on_exit=lambda: None)
    follower.step(now=0)
    wanted["live"] = assigned(2, run="run-2")
    follower.step(now=0)
    assert (engine.versions(), follower.problems()["live"].code) == ({"live": 1}, "wrong_run")
    wanted["live"] = assigned(2, run="test")
    follower.step(now=100)
    wanted["live"] = assigned(1, run="run-2")
    follower.step(now=200)
    assert engine.versions() == {"live": 2}, "nor on the way back, which asks no store"
    engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_reader_ends_the_process() -> None:
    ended: list[bool] = []

    def broken() -> dict[str, Assignment]:
        raise OSError("the disk is gone")

    engine = make_engine(make_store(1))
    follower = Follower(engine, broken, on_exit=lambda: ended.append(True))
    follower.start()
    wait_for(ended)
    follower.stop()
    assert ended == [True]
    engine.close()


def test_a_woken_follower_reads_at_once() -> None:
    reads = threading.Semaphore(0)

    def read() -> dict[str, Assignment]:
        reads.release()
        return {}

    engine = make_engine(make_store(1))
    follower = Follower(engine, read, on_exit=lambda: None, poll_seconds=60.0)
    follower.start()
    assert reads.acquire(timeout=60), "the first look needs no bell"
    follower.wake()
    assert reads.acquire(timeout=60)
    follower.stop()
    engine.close()


def test_a_lost_wake_up_costs_no_more_than_a_poll() -> None:
    wanted: dict[str, Assignment] = {"live": assigned(1)}
    reads, swapped = threading.Semaphore(0), threading.Event()

    def read() -> dict[str, Assignment]:
        reads.release()
        return dict(wanted)

    engine = make_engine(make_store(2), on_swap=lambda _record: swapped.set())
    follower = Follower(engine, read, on_exit=lambda: None, poll_seconds=0.01)
    follower.start()
    assert all(reads.acquire(timeout=60) for _ in range(2)), "the second look is after version 1 was loaded"
    wanted["live"] = assigned(2)  # and nobody rings
    assert swapped.wait(timeout=60)
    follower.stop()
    assert engine.versions() == {"live": 2}
    engine.close()


def test_assignments_that_cannot_be_read_leave_everything_as_it_is() -> None:
    reads: list[float] = []
    failing = True

    def read() -> dict[str, Assignment]:
        reads.append(0.0)
        if failing:
            raise Unavailable("the database is locked")
        return {"live": assigned(1)}

    engine = make_engine(make_store(1))
    follower = Follower(engine, read, on_exit=lambda: None)
    follower.step(now=0)
    follower.step(now=0.1)
    assert len(reads) == 1, "the second read was too early"
    assert follower.problems()["assignments"].code == "unavailable"
    failing = False
    follower.step(now=1)
    assert follower.problems() == {}
    assert engine.versions() == {"live": 1}
    engine.close()


def test_a_swap_that_could_not_be_recorded_is_done_all_the_same() -> None:
    def full(_record: object) -> None:
        raise Unavailable("the disk is full")

    engine = make_engine(make_store(2), on_swap=full)
    follower = Follower(engine, lambda: {"live": assigned(2)}, on_exit=lambda: None)
    engine.update("live", 1)
    follower.step(now=0)
    assert engine.versions() == {"live": 2}
    assert follower.problems()["live"].message == "the disk is full"
    follower.step(now=0.1)
    assert follower.problems() == {}
    engine.close()


def test_a_base_that_cannot_be_loaded_ends_the_process() -> None:
    ended: list[bool] = []
    engine = make_engine(make_store(1), make_model=unloadable)
    follower = Follower(engine, lambda: {"live": assigned(1)}, on_exit=lambda: ended.append(True))
    follower.start()
    wait_for(ended)
    follower.stop()
    engine.close()
    assert ended == [True]
    assert follower.fatal is not None
    assert "no such architecture" in follower.fatal.message


def test_a_second_model_that_cannot_be_loaded_leaves_what_serves() -> None:
    models = [tiny_model()]
    engine = make_engine(make_store(2), make_model=lambda: models.pop() if models else unloadable())
    follower = Follower(engine, lambda: {"live": assigned(1), "candidate": assigned(2)}, on_exit=lambda: None)
    follower.step(now=0)
    assert engine.versions() == {"live": 1}
    assert follower.problems()["candidate"].code == "invalid_settings"
    engine.close()


def wait_for(ended: list[bool]) -> None:
    deadline = time.monotonic() + 60
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)


def unloadable() -> Any:
    raise InvalidSettings("no such architecture")
