"""Attempts of one request: what the log records of them, with the unmodified SDK."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from contracts.ids import is_stored
from contracts.records import Attempt
from contracts.tasks.loading import load_tasks
from runtime.database import Database
from services.inference.app import create_app
from services.inference.arrival import attempt_of
from tests.unit.pipelines.episodes.bench import Join
from tests.unit.pipelines.episodes.test_retries import states
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import Stage, StubbornLog
from tests.unit.services.serving import make_home, serve, wait_until

KEY = {"authorization": "Bearer mr-app-1-2"}


def counted(number: object) -> dict[str, str]:
    return KEY | {"x-stainless-retry-count": str(number)}


def test_all_tries_of_a_request_have_one_name() -> None:
    first, again = attempt_of(counted(0), b"body"), attempt_of(counted(1), b"body")
    assert first is not None
    assert again == Attempt(first.request, 1)
    assert first.count == 0


def test_another_body_or_another_key_is_another_request() -> None:
    tries = [attempt_of(counted(0), b"body"), attempt_of(counted(0), b"Body"),
             attempt_of(counted(0) | {"authorization": "Bearer mr-app-1-3"}, b"body")]  # fmt: skip
    assert len({attempt.request for attempt in tries if attempt}) == 3


@pytest.mark.parametrize("count", ["", "-1", "1.5", "one", "٣", "9" * 4, " 1"])
def test_what_is_no_count_is_no_try(count: str) -> None:
    assert attempt_of(counted(count), b"body") is None
    assert attempt_of(KEY, b"body") is None


def test_a_request_that_names_itself_is_repeated_instead() -> None:
    assert attempt_of(counted(1) | {"idempotency-key": "k"}, b"body") is None


@pytest.mark.usefixtures("alone")
def test_the_sdk_s_tries_are_logged_as_tries_and_only_the_last_is_learned(
    inference: Inference, database: Database, tmp_path: Path
) -> None:
    """Its patience ends in the middle of the first answer; the second is read."""
    inference.engine.hold_after = 3
    client = inference.client.with_options(max_retries=1, timeout=0.4)
    second = threading.Thread(target=let_go_at_the_second, args=[inference])
    second.start()
    answer = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "table for 4"}])
    second.join()

    wait_until(lambda: len(inference.logged()) == 2)
    cut, read = sorted(inference.logged(), key=lambda record: record.completion_id)
    assert read.completion_id == answer.id
    assert (cut.finish_reason, read.finish_reason) == ("cancelled", "stop")
    assert cut.attempt is not None
    assert read.attempt == Attempt(cut.attempt.request, 1)
    assert (cut.attempt.count, read.num_choices) == (0, 1)

    join = Join(database, *load_tasks((tmp_path / "task.toml",)).values())
    join.now = time.time()
    join.hear(read, cut)
    assert states(join) == {cut.key: ("filtered", "superseded"), read.key: ("pending", "")}


@pytest.mark.usefixtures("alone")
def test_neither_another_replica_nor_a_restart_forgets_the_earlier_try(
    inference: Inference, database: Database, tmp_path: Path, stage: Stage
) -> None:
    """Nothing but the record says which request it was: the process that answered first may be dead."""
    body = '{"model": "demo", "messages": [{"role": "user", "content": "table for 4"}]}'
    first = inference.post(body, **{"x-stainless-retry-count": "0"}).json()["id"]
    other_log = StubbornLog(tmp_path / "log")
    with serve(create_app(make_home(tmp_path, stage.url), event_log=other_log)) as inference.url:
        last = inference.post(body, **{"x-stainless-retry-count": "1"}).json()["id"]
    join = Join(database, *load_tasks((tmp_path / "task.toml",)).values())
    join.now = time.time()
    join.hear(*reversed(inference.logged()))
    assert states(join) == {f"{first}:0": ("filtered", "superseded"), f"{last}:0": ("pending", "")}


def let_go_at_the_second(inference: Inference) -> None:
    wait_until(lambda: len(inference.engine.requests) > 1 and inference.engine.num_closed)
    inference.engine.go.set()


def test_an_operator_s_rollouts_are_no_tries(inference: Inference) -> None:
    for _ in range(2):
        inference.ask(
            inference.operator, extra_headers={"x-millrace-purpose": "rollout", "x-stainless-retry-count": "1"}
        )
    assert [record.attempt for record in inference.logged()] == [None, None]


@pytest.mark.parametrize(
    ("task", "store", "kept"),
    [("booking", False, False), ("private", None, False), ("booking", None, True), ("private", True, True)],
)
def test_the_id_of_an_answer_says_whether_it_is_kept(
    inference: Inference, task: str, store: bool | None, kept: bool
) -> None:
    answer = inference.ask(metadata={"task": task}, store=store)
    *_, chunk = inference.ask(metadata={"task": task}, store=store, stream=True)
    assert [is_stored(answer.id), is_stored(chunk.id)] == [kept, kept]
    assert len(inference.logged()) == 2 * kept
