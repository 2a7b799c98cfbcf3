from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rewards.killable import ItemOutcome, NotStarted, Pool, Setup, pool_for
from rewards.verifiers.check import Answer, Check, wrong
from rewards.verifiers.referee import refereed
from tests.unit.rewards.verifiers.conftest import WORKED_SECONDS

pytestmark = pytest.mark.slow

TARGET = "tests.unit.rewards.verifiers.hostile:worker"
SETUP = Setup(TARGET, memory_bytes=1 << 30, recycle_bytes=64 << 20)
DEADLINE = 0.4
PATIENCE = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(SETUP, num_workers=2)
    yield pool
    pool.close()


def one(pool: Pool, do: str, deadline: float = PATIENCE, **more: Any) -> ItemOutcome:
    return pool.run_all([{"do": do, **more}], deadline)[0]


def is_gone(process_id: int) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_items_come_back_in_order(pool: Pool) -> None:
    found = pool.run_all([{"do": "echo", "value": [number, "é\ud800"]} for number in range(200)], PATIENCE)
    assert [outcome.value for outcome in found] == [[number, "é\ud800"] for number in range(200)]


@pytest.mark.parametrize("do", ["sleep", "spin", "huge power"])
def test_what_misses_its_deadline_is_killed_and_replaced(pool: Pool, do: str) -> None:
    started = time.monotonic()
    found = one(pool, do, DEADLINE)
    assert (found.how, found.reason) == ("late", "it took longer than 0.4 s")
    assert time.monotonic() - started < PATIENCE
    # How much of a processor it got depends on the machine; to sleep takes next to nothing.
    assert (found.cpu_seconds >= WORKED_SECONDS) == (do != "sleep")
    assert one(pool, "echo", value=1).value == 1


@pytest.mark.parametrize(
    ("do", "how", "reason"),
    [
        ("die", "crashed", "its process ended with code 3"),
        ("kill", "crashed", "its process died of signal 9"),
        ("nonsense", "crashed", "its process was stopped: its answer is too large"),
        ("flood", "crashed", "its process was stopped: its answer is too large"),
        ("raise", "raised", "ValueError: a mistake (hostile.py:"),
        ("exit", "raised", "SystemExit: 3"),
        ("object", "raised", "TypeError: Object of type object is not JSON serializable"),
        ("big", "raised", "the result has"),
        ("eat", "exhausted", "MemoryError"),
        ("recurse", "exhausted", "RecursionError"),
    ],
)
def test_ways_to_fail_are_told_apart(pool: Pool, do: str, how: str, reason: str) -> None:
    found = one(pool, do)
    assert found.how == how
    assert found.reason.startswith(reason)
    assert one(pool, "echo", value=1).value == 1


def test_what_an_item_prints_does_not_disturb_its_answer(pool: Pool) -> None:
    assert one(pool, "print").value == "quiet"


def test_what_a_late_item_started_dies_with_it(pool: Pool, tmp_path: Path) -> None:
    assert one(pool, "child", 3.0, file=str(tmp_path / "pid")).how == "late"
    assert is_gone(int((tmp_path / "pid").read_text(encoding="utf-8")))


def test_a_worker_that_grew_is_replaced(pool: Pool) -> None:
    first = {one(pool, "grow", bytes=100 << 20).value for _ in range(3)}
    assert len(first) == 3
    assert all(is_gone(process_id) for process_id in first)


def test_a_hung_worker_holds_up_nobody_else(pool: Pool, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        hung = threads.submit(one, pool, "wait", PATIENCE, file=str(tmp_path / "end"))
        asked = [threads.submit(pool.run_all, [{"do": "echo", "value": 1}] * 20, PATIENCE) for _ in range(4)]
        for found in asked:
            assert [outcome.value for outcome in found.result()] == [1] * 20
        assert not hung.done()
        (tmp_path / "end").touch()
        assert hung.result().how == "answered"


async def test_it_works_under_asyncio_on_the_loop_and_off_it(pool: Pool) -> None:
    assert one(pool, "echo", value="on").value == "on"
    found = await asyncio.gather(*(asyncio.to_thread(one, pool, "echo", value=index) for index in range(8)))
    assert [outcome.value for outcome in found] == list(range(8))


def test_a_worker_that_died_while_idle_costs_no_item() -> None:
    pool = Pool(SETUP, num_workers=1)
    process_id = one(pool, "pid").value
    os.kill(process_id, signal.SIGKILL)
    assert is_gone(process_id)
    found = one(pool, "pid")
    assert found.how == "answered"
    assert found.value != process_id
    pool.close()


@pytest.mark.parametrize(
    ("start", "says"),
    [("raise", "RuntimeError: it does not start"), ("die", "ended with code 7"), ("hang", "it took longer than 0.5 s")],
)
def test_workers_that_do_not_start_turn_items_away_instead_of_keeping_them(start: str, says: str) -> None:
    seconds = 0.5 if start == "hang" else PATIENCE
    pool = Pool(Setup(TARGET, json.dumps({"start": start}), start_seconds=seconds), num_workers=2)
    found = pool.run_all([{"do": "echo", "value": 1}] * 5, PATIENCE)
    assert {outcome.how for outcome in found} == {"unstarted"}
    assert all(says in outcome.reason for outcome in found)


def test_a_setup_that_raises_is_told_before_any_item() -> None:
    with pytest.raises(NotStarted, match="it does not start"):
        Pool(Setup(TARGET, json.dumps({"start": "raise"}))).check()


def test_a_budget_bounds_what_a_whole_list_costs() -> None:
    pool = Pool(SETUP, num_workers=1)
    pool.check()
    found = pool.run_all([{"do": "sleep"}] * 50, 0.2, budget_seconds=0.3)
    assert 1 <= sum(outcome.how == "late" for outcome in found) <= 2
    assert (found[-1].how, found[-1].reason) == ("unstarted", "other items used up the time")
    pool.close()


def test_equal_setups_share_their_workers_and_a_forgotten_pool_ends_them() -> None:
    setup = Setup(TARGET, '{"shared": true}')
    pool = pool_for(setup)
    assert pool_for(setup) is pool
    process_id = one(pool, "pid").value
    del pool
    gc.collect()
    assert is_gone(process_id)


def test_a_closed_pool_answers() -> None:
    pool = Pool(SETUP, num_workers=1)
    pool.close()
    assert one(pool, "echo", value=1) == ItemOutcome("unstarted", reason="the pool is closed")


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import threading, time
from rewards.killable import Pool, Setup
pool = Pool(Setup({TARGET!r}), num_workers=2)
threading.Thread(target=pool.run_all, args=([{{"do": "sleep"}}], 600), daemon=True).start()
time.sleep(0.1)
number = pool.run_all([{{"do": "pid"}}], 60)[0].value
open({str(tmp_path / "pid")!r} + ".new", "w").write(str(number))
__import__("os").rename({str(tmp_path / "pid")!r} + ".new", {str(tmp_path / "pid")!r})
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])  # noqa: S603 our own interpreter and script
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "pid").exists() and time.monotonic() < end:
        time.sleep(0.02)
    while len(children := [child.pid for child in psutil.Process(parent.pid).children()]) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert all(is_gone(process_id) for process_id in children)


def judged(reference: str, *answers: str) -> list[Check]:
    pool = pool_for(Setup("tests.unit.rewards.verifiers.hostile:referee_worker", memory_bytes=1 << 30))
    verifier = refereed(pool, 0.5, lambda text: text or wrong("empty"))
    return list(verifier.check_all([Answer(text, {"reference": reference}) for text in answers]))


@pytest.mark.parametrize("deed", ["spin", "die", "recurse"])
def test_an_answer_that_breaks_the_worker_is_the_models_fault_if_the_reference_holds(deed: str) -> None:
    good, bad, empty = judged("fine", "fine", deed, "")
    assert (good.value, good.fault) == (1.0, "none")
    assert (bad.value, bad.fault) == (0.0, "model")
    assert bad.reason
    assert (empty.value, empty.fault, empty.reason) == (0.0, "model", "empty")


@pytest.mark.parametrize("deed", ["spin", "die", "recurse", "unreadable"])
def test_a_reference_that_breaks_it_alone_is_the_apps_fault(deed: str) -> None:
    for check in judged(deed, "fine", "spin"):
        assert (check.value, check.status, check.fault) == (None, "unscored", "user")


@pytest.mark.parametrize(("deed", "says"), [("raise", "ValueError"), ("sleep", "s of processor time")])
def test_a_mistake_of_ours_or_a_worker_without_a_processor_is_nobodys_zero(deed: str, says: str) -> None:
    (check,) = judged("fine", deed)
    assert (check.value, check.status, check.fault) == (None, "unscored", "infra")
    assert says in check.reason


def test_without_a_reference_there_is_nothing_to_say() -> None:
    verifier = refereed(pool_for(SETUP), 0.5, lambda text: text)
    assert [check.status for check in verifier.check_all([Answer("fine")])] == ["unlabelled"]


def test_equal_answers_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, run_all = list[object](), Pool.run_all

    def noted(pool: Pool, items: Sequence[Mapping[str, Any]], deadline_seconds: float) -> list[ItemOutcome]:
        asked.extend(items)
        return run_all(pool, items, deadline_seconds)

    monkeypatch.setattr(Pool, "run_all", noted)
    checks = judged("fine", *["spin"] * 20)
    assert [(check.value, check.fault) for check in checks] == [(0.0, "model")] * 20
    assert len(asked) == 2, "the answer, and the reference alone"
