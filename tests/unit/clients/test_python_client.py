"""The Python client against a scripted API and the real one: nothing is lost or sent twice, nothing raises, nothing waits."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.ids import new_completion_id
from millrace_client import AsyncFeedback, Counts, Feedback, outbox
from runtime.database import Database
from services.feedback.app import create_app
from tests.unit.clients.server import scripted
from tests.unit.services.serving import make_home, make_key, serve, wait_until

ROOT = Path(__file__).parent.parent.parent.parent
SOURCE = ROOT / "clients" / "python" / "src"
NOWHERE = "http://127.0.0.1:1"
ID = "chatcmpl-0198f2c0-0000-7000-8000-000000000000"


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the client's logger says."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("millrace_client")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_each_way_to_say_it_reaches_the_api() -> None:
    with scripted() as api, Feedback(f"{api.url}/v1/", "key") as feedback:
        began = time.time()
        for answer in (ID, {"id": ID}, SimpleNamespace(id=ID)):
            feedback.track(answer).accepted()
        tracked = feedback.track(ID, choice=1, user="u-1")
        tracked.rejected()
        tracked.edited("four\nat eight")
        tracked.retried()
        tracked.signal("stars", 4.5)
        assert feedback.flush()
        assert feedback.counts == Counts(waiting=0, sent=7, refused=0, dropped=0)
    [items] = api.batches
    assert [(item["name"], item["value"]) for item in items] == [
        ("accepted", True), ("accepted", True), ("accepted", True),
        ("accepted", False), ("edited", "four\nat eight"), ("regenerated", True), ("stars", 4.5),
    ]  # fmt: skip
    assert {item["completion_id"] for item in items} == {ID}
    assert len({item["id"] for item in items}) == 7
    assert all(began <= item["at"] <= time.time() for item in items)
    assert [item["choice"] for item in items] == [0, 0, 0, 1, 1, 1, 1]
    assert ("submitter" in items[0], items[3]["submitter"]) == (False, {"id": "u-1"})
    assert api.keys == ["Bearer key"]


def test_a_batch_is_sent_again_with_the_same_ids_no_sooner_than_told(said: list[str]) -> None:
    answers: list[tuple[int, dict[str, str], object]] = [
        (502, {}, {}),
        (503, {"retry-after": "0"}, {}),
        (429, {"retry-after-ms": "300", "retry-after": "9"}, {}),
    ]
    with scripted(*answers) as api, Feedback(api.url, "key") as feedback:
        began = time.monotonic()
        feedback.track(ID).accepted()
        assert feedback.flush(30)
        assert time.monotonic() - began >= 0.3
        assert feedback.counts == Counts(0, 1, 0, 0)
    assert len(api.batches) == 4
    assert len({item["id"] for [item] in api.batches}) == 1
    assert ["answers 502" in line for line in said] == [True]  # once for all of its kind


def test_refusals_are_counted_and_named_once_and_fail_no_other_signal(said: list[str]) -> None:
    error = {"status": 422, "error": {"code": "unknown_signal", "message": "no task declares it"}}
    refused = {"successes": [], "errors": [{"index": 0, **error}, {"index": 2, **error}]}
    with scripted((207, {}, refused), (401, {}, {"error": "who is this"})) as api, Feedback(api.url, "key") as feedback:
        for value in ("a", "b", "c"):
            feedback.track(ID).signal("note", value)
        assert feedback.flush()
        assert feedback.counts == Counts(0, 1, 2, 0)
        feedback.track(ID).accepted()
        assert feedback.flush()
        assert feedback.counts == Counts(0, 1, 3, 0)
    assert [line.split(": ")[1].split(";")[0] for line in said if "no task" in line] == ["no task declares it"]
    assert ["answers 401" in line for line in said] == [False, True]


def test_what_cannot_be_sent_raises_nothing_and_harms_no_other_signal(said: list[str]) -> None:
    with scripted() as api, Feedback(api.url, "key") as feedback:
        unusable: list[Any] = [float("nan"), "\ud800", object()]
        for value in unusable:
            feedback.track(ID).signal("stars", value)
        feedback.track(None).accepted()
        feedback.track(SimpleNamespace(id=None)).accepted()
        feedback.track(ID).accepted()
        assert feedback.flush()
        assert feedback.counts == Counts(0, 1, 5, 0)
    assert api.values == [True]
    assert len(said) == 1


@pytest.mark.parametrize("key", ["mr-secret\n", " mr-sec\nret", "mr-secr\u00e9\0et"])
def test_a_key_that_no_header_may_have_is_mended_and_not_logged(key: str, said: list[str]) -> None:
    with scripted() as api, Feedback(api.url, key) as feedback:
        feedback.track(ID).accepted()
        assert feedback.flush()
    assert (api.keys, said) == (["Bearer mr-secret"], [])


def test_many_travel_together_and_in_order() -> None:
    with scripted() as api, Feedback(api.url, "key") as feedback:
        for number in range(1200):
            feedback.track(ID).signal("stars", number)
        assert feedback.flush()
    assert api.values == list(range(1200))
    assert len(api.batches) < 12
    assert max(map(len, api.batches)) <= outbox.MAX_BATCH


def test_while_nobody_answers_the_oldest_go_and_the_app_never_waits(said: list[str]) -> None:
    feedback = Feedback(NOWHERE, "key")
    for number in range(outbox.MAX_ITEMS + outbox.MAX_BATCH + 7):
        feedback.track(ID).signal("stars", number)
    assert not feedback.flush(0.0)
    counts = feedback.counts
    assert counts.waiting + counts.dropped == outbox.MAX_ITEMS + outbox.MAX_BATCH + 7
    assert outbox.MAX_ITEMS <= counts.waiting <= outbox.MAX_ITEMS + outbox.MAX_BATCH
    assert not feedback.close(0.0)
    wait_until(lambda: feedback.counts.waiting == 0)
    feedback.track(ID).accepted()
    assert feedback.counts == Counts(0, 0, 0, outbox.MAX_ITEMS + outbox.MAX_BATCH + 8)
    assert sum("dropped" in line for line in said) == 1


def test_large_signals_are_bounded_too() -> None:
    feedback = Feedback(NOWHERE, "key")
    for _ in range(40):
        feedback.track(ID).edited("x" * 2**20)
    assert feedback.counts.waiting <= 33
    assert feedback.counts.dropped >= 7
    feedback.close(0.0)


def test_a_batch_that_breaks_the_server_is_given_up_after_some_tries() -> None:
    broken: list[tuple[int, dict[str, str], object]] = [(500, {"retry-after": "0"}, {})] * outbox.MOST_BROKEN
    with scripted(*broken) as api, Feedback(api.url, "key") as feedback:
        feedback.track(ID).signal("stars", 1)
        assert feedback.flush(30)
        feedback.track(ID).signal("stars", 2)
        assert feedback.flush(30)
        assert feedback.counts == Counts(0, 1, 1, 0)
    assert api.values == [1] * outbox.MOST_BROKEN + [2]


async def test_the_async_client_waits_without_stopping_the_loop() -> None:
    with scripted() as api:
        async with AsyncFeedback(api.url, "key") as feedback:
            feedback.track(ID).accepted()
            assert await feedback.flush()
            feedback.track(ID).rejected()
        assert feedback.counts == Counts(0, 2, 0, 0)
    assert api.values == [True, False]


def test_the_real_api_takes_its_signals_once(tmp_path: Path, database: Database) -> None:
    with serve(create_app(make_home(tmp_path))) as url, Feedback(url, make_key(database)) as feedback:
        tracked = feedback.track(new_completion_id(), user="u-1")
        tracked.accepted()
        tracked.rejected()
        tracked.edited("Tisch für 4")
        tracked.signal("stars", 4)
        tracked.retried()  # no task of this home declares it
        assert feedback.flush()
        assert feedback.counts == Counts(0, 4, 1, 0)


@pytest.mark.slow
def test_what_waits_is_sent_at_exit_and_a_forked_child_sends_only_its_own() -> None:
    program = (
        "import os, sys\n"
        "from millrace_client import Feedback\n"
        "feedback = Feedback(sys.argv[1], 'key')\n"
        f"answer = feedback.track({ID!r})\n"
        "answer.signal('stars', 1)\n"
        "if os.fork() == 0:\n"
        "    assert feedback.counts.waiting == 0\n"
        "    answer.signal('stars', 2)\n"
        "else:\n"
        "    assert os.wait()[1] == 0\n"
    )
    with scripted() as api:
        command = [sys.executable, "-W", "error", "-c", program, api.url]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)  # noqa: S603
        assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(api.values) == [1, 2]


@pytest.mark.slow
def test_exit_is_not_delayed_for_long_by_a_server_that_is_away() -> None:
    program = (
        "import sys\n"
        "from millrace_client import Feedback, outbox\n"
        "outbox.EXIT_SECONDS = 0.2\n"
        f"Feedback(sys.argv[1], 'key').track({ID!r}).accepted()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-W", "error", "-c", program, NOWHERE]
    ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)  # noqa: S603
    assert ran.returncode == 0
    assert "not all signals could be sent" in ran.stderr
