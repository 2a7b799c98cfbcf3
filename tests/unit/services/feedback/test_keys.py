"""Signals about join keys and sessions over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, insert, select

from contracts.records import Signal, decode_shape
from contracts.tables import join_key, received_signal, signal, waiting_signal
from pipelines.episodes.repository import signal_row
from pipelines.episodes.samples import HeldSignal
from runtime.database import Database
from tests.unit.services.feedback.conftest import Feedback
from tests.unit.services.serving import make_key, wait_until


def know(feedback: Feedback, kind: str, value: str, choice: int = 0, tenant: str = "default") -> None:
    """What the join notes when an answer with this key arrives."""
    row = {"tenant": tenant, "kind": kind, "value": value, "choice": choice, "at": 1.0}
    with feedback.database.transaction() as connection:
        connection.execute(insert(join_key).values(completion_id=feedback.completion_id, **row))


def about(target: str, value: str, **changes: Any) -> dict[str, Any]:
    return {"completion_id": None, target: value, **changes}


def waiting(feedback: Feedback) -> list[tuple[str, str, str, str]]:
    columns = waiting_signal.c
    with feedback.database.snapshot() as connection:
        rows = connection.execute(select(columns.tenant, columns.id, columns.kind, columns.value).order_by(columns.id))
        return [tuple(row) for row in rows]


def test_a_signal_about_a_session_waits_for_the_join_to_say_which_answer_was_the_last(feedback: Feedback) -> None:
    know(feedback, "session", "s")
    assert feedback.send(id="a", **about("session_id", "s")).json()["state"] == "accepted"
    assert waiting(feedback) == [("default", "a", "session", "s")]


def test_a_signal_about_a_key_is_sent_under_the_answer_that_has_it(feedback: Feedback) -> None:
    target = "join_key"
    know(feedback, "key", "order 1", choice=2)
    assert feedback.send(id="a", **about(target, "order 1")).json()["state"] == "accepted"

    wait_until(feedback.relayed)
    [sent] = feedback.relayed()
    assert (sent.id, sent.completion_id, sent.choice) == ("a", feedback.completion_id, 2)
    assert waiting(feedback) == []
    shown = feedback.call("GET", "/a").json()
    assert (shown["completion_id"], shown["choice"], shown["state"]) == (feedback.completion_id, 2, "pending")
    assert target not in shown


@pytest.mark.parametrize(("target", "kind"), [("join_key", "key"), ("session_id", "session")])
def test_without_such_an_answer_it_waits_and_is_durable_all_the_same(
    feedback: Feedback, target: str, kind: str
) -> None:
    know(feedback, "session" if kind == "key" else "key", "order 1")  # another thing of the same name
    assert feedback.send(id="a", **about(target, "order 1")).status_code == 202

    assert waiting(feedback) == [("default", "a", kind, "order 1")]
    assert feedback.num_received() == 1
    assert feedback.num_waiting() == 0
    shown = feedback.call("GET", "/a").json()
    assert (shown["state"], shown["completion_id"], shown[target]) == ("pending", None, "order 1")


def test_the_same_id_is_a_duplicate_before_and_after_its_answer_came(feedback: Feedback) -> None:
    item = about("join_key", "k", id="a")
    states = [feedback.send(**item).json()["state"] for _ in range(2)]
    know(feedback, "key", "k")
    states.append(feedback.send(**item).json()["state"])
    assert states == ["accepted", "duplicate", "duplicate"]
    assert feedback.send(**item | {"join_key": "other"}).status_code == 409
    assert len(waiting(feedback)) == feedback.num_received() == 1


def test_what_is_taken_back_while_it_waits_is_not_sent(feedback: Feedback) -> None:
    feedback.send(**about("join_key", "k", id="a"))
    first, again = feedback.call("DELETE", "/a"), feedback.call("DELETE", "/a")
    assert first.status_code == 202
    assert first.json() == again.json()
    assert feedback.call("GET", "/a").json()["state"] == "retracted"
    assert feedback.num_waiting() == 0
    assert feedback.relayed() == []


def test_what_waited_in_vain_says_so(feedback: Feedback) -> None:
    feedback.send(**about("join_key", "k", id="a"))
    with feedback.database.transaction() as connection:  # as the join does it after seven days
        wire = connection.execute(select(received_signal.c.record)).scalar_one()
        settled = HeldSignal(decode_shape(Signal, wire), "rejected", "never_logged")
        connection.execute(insert(signal).values(**signal_row(settled)))
        connection.execute(delete(waiting_signal))
    shown = feedback.call("GET", "/a").json()
    assert (shown["state"], shown["reason"], shown["completion_id"]) == ("rejected", "never_logged", None)


def test_keys_of_another_tenant_do_not_exist(feedback: Feedback, database: Database) -> None:
    know(feedback, "key", "k", tenant="other")
    assert feedback.send(**about("join_key", "k", id="a")).status_code == 202
    assert waiting(feedback) == [("default", "a", "key", "k")]
    theirs = feedback.call(
        "POST", "", key=make_key(database, tenant="other"), json=feedback.item(**about("join_key", "k"))
    )
    assert theirs.status_code == 202
    wait_until(feedback.relayed)
    assert [sent.tenant for sent in feedback.relayed()] == ["other"]


def test_a_batch_may_name_completions_sessions_and_keys(feedback: Feedback) -> None:
    know(feedback, "session", "s")
    items = [
        about("session_id", "s", id="a"),
        {"id": "b"},
        about("join_key", "k", id="c"),
        about("join_key", "k", id="c"),
    ]
    answer = feedback.call("POST", "/batch", json={"items": [feedback.item(**item) for item in items]}).json()
    assert [item["state"] for item in answer["successes"]] == ["accepted", "accepted", "accepted", "duplicate"]
    wait_until(lambda: len(feedback.relayed()) == 1)
    assert {sent.id for sent in feedback.relayed()} == {"b"}
    assert [row[1] for row in waiting(feedback)] == ["a", "c"]


BAD_TARGETS: list[tuple[dict[str, Any], str, str]] = [
    (about("join_key", "k", session_id="s"), "invalid_target", "session_id"),
    (about("join_key", ""), "invalid_request", "join_key"),
    (about("join_key", "x" * 257), "invalid_request", "join_key"),
    (about("session_id", "a\0b"), "invalid_request", "session_id"),
    (about("join_key", "k", choice=1), "invalid_target", "choice"),
]


def test_bad_targets_are_refused_and_counted(feedback: Feedback) -> None:
    for changes, code, param in BAD_TARGETS:
        response = feedback.send(**changes)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, code, param), changes
    assert feedback.counts() == {"rejected": len(BAD_TARGETS)}
    assert feedback.num_received() == 0
