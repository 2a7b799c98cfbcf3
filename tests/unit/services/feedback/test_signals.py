"""Signals over HTTP: acknowledged when durable, and stored once."""

from __future__ import annotations

import ast
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, update

from contracts.records import Submitter, encode
from contracts.tables import signal as signal_table
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.settings import Settings
from services.feedback.app import create_app
from tests.unit.services.feedback.conftest import Feedback, FullLog
from tests.unit.services.serving import make_home, make_key, serve, wait_until


def test_an_early_signal_is_accepted_and_relayed(feedback: Feedback) -> None:
    before = time.time()
    response = feedback.send(
        id="fb-1",
        choice=1,
        name="edited",
        value="use 19:30",
        correction='{"time":"19:30"}',
        at="2026-01-02T03:04:05Z",
        submitter={"id": "u1", "kind": "user"},
        comment="hm",
        metadata={"screen": "a"},
    )

    assert response.status_code == 202
    assert response.json() == {"id": "fb-1", "state": "accepted", "received_at": response.json()["received_at"]}
    wait_until(feedback.relayed)
    [signal] = feedback.relayed()
    assert (signal.id, signal.key, signal.name) == ("fb-1", f"{feedback.completion_id}:1", "edited")
    assert (signal.value, signal.correction) == ("use 19:30", '{"time":"19:30"}')
    assert (signal.at, signal.tenant, signal.submitter) == (1767323045.0, "default", Submitter(id="u1", kind="user"))
    assert before <= signal.received_at == response.json()["received_at"] <= time.time()
    wait_until(lambda: feedback.num_waiting() == 0)


def test_without_an_id_the_server_makes_one(feedback: Feedback) -> None:
    ids = {feedback.send().json()["id"] for _ in range(2)}

    assert len(ids) == feedback.num_received() == 2
    assert feedback.call("GET", f"/{ids.pop()}").json()["state"] == "pending"


def test_the_same_signal_twice_is_a_duplicate_and_another_under_its_id_a_conflict(feedback: Feedback) -> None:
    first = feedback.send(id="fb-1")
    again = feedback.send(id="fb-1")
    other = feedback.send(id="fb-1", value=False)

    assert (again.status_code, again.json()) == (202, first.json() | {"state": "duplicate"})
    assert (other.status_code, other.json()["error"]["code"], other.json()["error"]["param"]) == (409, "conflict", "id")
    assert feedback.num_received() == 1
    assert feedback.counts() == {"duplicate": 1, "conflict": 1}
    wait_until(lambda: feedback.num_waiting() == 0)
    assert [signal.value for signal in feedback.relayed()] == [True]


def test_one_signal_sent_by_many_at_once_is_stored_once(feedback: Feedback) -> None:
    with ThreadPoolExecutor(8) as pool:
        states = [answer.json()["state"] for answer in pool.map(lambda _: feedback.send(id="fb-1"), range(16))]

    assert sorted(states) == ["accepted", *["duplicate"] * 15]
    assert feedback.counts() == {"duplicate": 15}


ROOT = Path(__file__).parent.parent.parent.parent.parent
BAD_ITEMS: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"completion_id": None}, 400, "invalid_target", None),
    ({"session_id": "s1"}, 400, "invalid_target", "completion_id"),
    ({"completion_id": "chatcmpl-123"}, 400, "invalid_request", "completion_id"),
    ({"name": "purchased"}, 422, "unknown_signal", "name"),
    ({"name": "stars", "value": "five"}, 422, "invalid_value", "value"),
    ({"name": "stars", "value": True}, 422, "invalid_value", "value"),
    ({"name": "thumbs", "value": "sideways"}, 422, "invalid_value", "value"),
    ({"name": "accepted", "value": 2}, 422, "invalid_value", "value"),
    ({"metadata": {"run": 3}}, 400, "invalid_request", "metadata.run"),
    ({"value": {"text": "no"}}, 400, "invalid_request", "value"),
    ({"submitter": {"id": "u1", "kind": "cat"}}, 400, "invalid_request", "submitter.kind"),
    ({"submitter": {"id": ""}}, 400, "invalid_request", "submitter.id"),
    ({"id": "x" * 129}, 400, "invalid_request", "id"),
    ({"id": "a\0b"}, 400, "invalid_request", "id"),
    ({"submitter": {"id": "\0"}}, 400, "invalid_request", "submitter.id"),
    ({"choice": 8}, 400, "invalid_request", "choice"),
    ({"at": "yesterday"}, 400, "invalid_request", "at"),
    ({"at": 4_000_000_000}, 400, "invalid_request", "at"),
    ({"at": -1}, 400, "invalid_request", "at"),
]


def test_bad_items_are_refused_and_counted(feedback: Feedback) -> None:
    for changes, status, code, param in BAD_ITEMS:
        response = feedback.send(**changes)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, code, param), changes
        assert error["message"]

    assert feedback.num_received() == 0
    assert feedback.counts() == {"rejected": len(BAD_ITEMS)}


def test_the_example_of_the_readme_is_taken(feedback: Feedback) -> None:
    snippet = (ROOT / "README.md").read_text().split("```python")[1].split("```")[0]
    example = next(line for line in snippet.splitlines() if line.startswith("signal = "))
    item = ast.literal_eval(example.removeprefix("signal = ").replace("answer.id", repr("ID")))
    answer = feedback.call("POST", "", json=item | {"completion_id": feedback.completion_id})
    assert answer.status_code == 202
    assert feedback.call("GET", f"/{answer.json()['id']}").json()["submitter"]["id"] == "anonymous"


def test_an_id_that_no_database_keeps_is_unknown(feedback: Feedback) -> None:
    for method in ("GET", "DELETE"):
        assert feedback.call(method, "/a%00b").status_code == 404


def test_what_cannot_be_read_is_refused_and_counted(feedback: Feedback) -> None:
    for path, body in (("", "{not json"), ("", "[]"), ("/batch", '{"items": 5}')):
        assert feedback.call("POST", path, content=body).status_code == 400
    assert feedback.call("POST", "/batch", json={"items": [feedback.item()] * 1001}).status_code == 400

    assert feedback.counts() == {"rejected": 3 + 1001}


def test_a_value_that_any_task_takes_is_accepted(feedback: Feedback) -> None:
    for name, value in (("accepted", False), ("accepted", "gladly"), ("stars", 4), ("stars", 4.5), ("thumbs", "up")):
        assert feedback.send(name=name, value=value).status_code == 202


def test_without_a_key_nothing_is_read(feedback: Feedback) -> None:
    assert feedback.call("POST", "", key="mr-app-000000000000-00", json=feedback.item()).status_code == 401
    assert feedback.counts() == {}


def test_a_batch_answers_for_each_item(feedback: Feedback) -> None:
    items = [
        feedback.item(id="a"),
        feedback.item(id="a"),
        feedback.item(id="a", value=False),
        feedback.item(name="purchased"),
        "not an item",
        feedback.item(id="b"),
    ]
    response = feedback.call("POST", "/batch", json={"items": items})

    assert response.status_code == 207
    answer = response.json()
    assert [(item["index"], item["status"], item["id"], item["state"]) for item in answer["successes"]] == [
        (0, 202, "a", "accepted"),
        (1, 202, "a", "duplicate"),
        (5, 202, "b", "accepted"),
    ]
    assert [(item["index"], item["status"], item["error"]["code"]) for item in answer["errors"]] == [
        (2, 409, "conflict"),
        (3, 422, "unknown_signal"),
        (4, 400, "invalid_request"),
    ]
    assert feedback.counts() == {"duplicate": 1, "conflict": 1, "rejected": 2}


def test_a_signal_shows_what_the_join_made_of_it(feedback: Feedback) -> None:
    feedback.send(id="fb/1")
    wait_until(feedback.relayed)
    [signal] = feedback.relayed()
    row = {
        "id": "fb/1",
        "tenant": "default",
        "completion_id": signal.completion_id,
        "choice": 0,
        "name": "accepted",
        "submitter": "u1",
        "at": signal.at,
        "received_at": signal.received_at,
        "state": "joined",
        "reason": "",
        "revision": 1,
        "record": encode(signal),
    }
    with feedback.database.transaction() as connection:
        connection.execute(insert(signal_table).values(**row))
    shown = feedback.call("GET", "/fb/1").json()
    assert (shown["state"], shown["revision"], shown["value"]) == ("joined", 1, True)

    with feedback.database.transaction() as connection:
        connection.execute(update(signal_table).values(state="conflict", reason="superseded"))
    shown = feedback.call("GET", "/fb/1").json()
    assert (shown["state"], shown["reason"]) == ("conflict", "superseded")


def test_a_retracted_signal_keeps_its_history_and_is_sent_again(feedback: Feedback) -> None:
    feedback.send(id="fb-1")
    first, second = feedback.call("DELETE", "/fb-1"), feedback.call("DELETE", "/fb-1")

    assert first.status_code == 202
    assert first.json() == second.json()
    assert feedback.call("GET", "/fb-1").json()["state"] == "retracted"
    wait_until(lambda: len(feedback.relayed()) == 2)
    wait_until(lambda: feedback.num_waiting() == 0)
    assert [signal.retracted for signal in feedback.relayed()] == [False, True]
    assert feedback.send(id="fb-1").json()["state"] == "duplicate"


def test_a_tenant_sees_only_its_own(feedback: Feedback, database: Database) -> None:
    other = make_key(database, tenant="other")
    feedback.send(id="fb-1")

    for method in ("GET", "DELETE"):
        response = feedback.call(method, "/fb-1", key=other)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert feedback.call("POST", "", key=other, json=feedback.item(id="fb-1")).status_code == 202
    assert feedback.num_received() == 2
    assert feedback.call("GET", "/fb-1").json()["state"] == "pending"
    assert feedback.call("GET", "/never").status_code == 404


def test_a_signal_is_acknowledged_while_the_log_is_full_and_relayed_after(
    feedback: Feedback, full_log: FullLog
) -> None:
    full_log.full.set()
    assert feedback.send(id="fb-1").status_code == 202
    assert feedback.num_waiting() == 1

    full_log.full.clear()
    feedback.send(id="fb-2")
    wait_until(lambda: len(feedback.relayed()) == 2)


def test_what_a_crash_left_between_commit_and_relay_is_relayed_at_the_next_start(
    feedback: Feedback, full_log: FullLog
) -> None:
    full_log.full.set()  # as if the process had died after its commit
    feedback.send(id="fb-1")

    log = LocalLog(feedback.settings.home / "log")
    with serve(create_app(feedback.settings, event_log=log)):
        wait_until(feedback.relayed)

    assert [signal.id for signal in feedback.relayed()] == ["fb-1"]


class FullDisk(Settings):
    """A home whose database may not grow by a page: SQLite's own answer to a full disk."""

    def database(self) -> Database:
        database = super().database()
        event.listen(database._engine, "connect", lambda opened, _: opened.execute("PRAGMA max_page_count = 1"))
        return database


def test_a_full_disk_acknowledges_nothing(feedback: Feedback, full_log: FullLog) -> None:
    full_disk = FullDisk(**feedback.settings.model_dump())
    long = secrets.token_hex(30_000)  # no packing makes it small
    with serve(create_app(full_disk, event_log=full_log)) as feedback.url:
        response = feedback.send(id="fb-1", correction=long)
        batch = feedback.call("POST", "/batch", json={"items": [feedback.item(correction=long)]})

    for refused in (response, batch):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert "database or disk is full" in refused.json()["error"]["message"]
        assert "free disk space" in refused.json()["error"]["message"]
    assert feedback.num_received() == feedback.num_waiting() == 0
    assert feedback.counts() == {}


@pytest.fixture
def limited(tmp_path: Path, database: Database, full_log: FullLog) -> Iterator[Feedback]:
    """Four signals a minute."""
    settings = make_home(tmp_path).model_copy(update={"signals_per_minute": 4})
    with serve(create_app(settings, event_log=full_log)) as url:
        yield Feedback(settings, database, full_log, url)


def test_a_batch_counts_by_its_items_and_a_refused_one_stores_nothing(limited: Feedback) -> None:
    batch = limited.call("POST", "/batch", json={"items": [limited.item(id=f"b{n}") for n in range(3)]})
    assert batch.status_code == 207
    assert batch.headers["x-ratelimit-remaining-signals"] == "1"
    refused = limited.call("POST", "/batch", json={"items": [limited.item(id=f"c{n}") for n in range(2)]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert limited.send(id="d").headers["x-ratelimit-remaining-signals"] == "0"
    assert limited.send(id="e").status_code == 429
    assert limited.num_received() == 4


def test_by_default_a_key_has_a_limit_that_no_product_of_one_app_meets(feedback: Feedback) -> None:
    sent = [feedback.send(id=f"s{n}") for n in range(5)]
    assert {answer.status_code for answer in sent} == {202}
    assert sent[0].headers["x-ratelimit-limit-signals"] == "30000"
