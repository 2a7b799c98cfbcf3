"""Which fields of an item are kept; nothing is kept about completions that must not be stored."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import InvalidRequest, NotStored
from contracts.ids import new_completion_id, response_id_of
from contracts.ledger import rejection_counts, signal_counts
from contracts.records import encode
from contracts.tables import generation, received_signal
from runtime.database import Database
from services.feedback.requests import read_item
from tests.each_case import each_case
from tests.fakes import BOOKING_TASK, a_generation
from tests.unit.pipelines.episodes.bench import Join, a_task
from tests.unit.services.feedback.conftest import Feedback

TASKS = {"booking": BOOKING_TASK}
NOW = 1_790_000_000.0
UNKEPT = new_completion_id(stored=False)


def reasons(database: Database) -> dict[str, int]:
    with database.snapshot() as connection:
        assert signal_counts(connection).unexplained == 0
        return rejection_counts(connection)


@pytest.mark.parametrize("value", [1, 1.0, 0, 0.0])
def test_a_bool_may_be_said_as_a_number_and_is_kept_as_a_bool(value: float) -> None:
    item = {"completion_id": new_completion_id(), "name": "accepted", "id": "i"}
    said, plain = (read_item(item | {"value": one}, TASKS, "default", NOW) for one in (value, bool(value)))
    assert (said.signal.value is bool(value), said.body_hash) == (True, plain.body_hash)


@each_case(
    "changes",
    [
        {},
        {"value": "use 19:30", "name": "edited", "correction": "x"},
        {"choice": 99},
        {"name": "nobody declares it"},
        {"colour": "blue"},
        {"submitter": {"id": "", "kind": "operator"}},
        {"at": "never"},
        {"session_id": "s", "value": 2**70},
    ],
)
def test_an_item_about_an_answer_that_is_not_kept_says_so_whatever_else_is_wrong(changes: dict[str, Any]) -> None:
    item = {"completion_id": UNKEPT, "name": "accepted", "value": True} | changes
    with pytest.raises(NotStored, match="store=false") as refused:
        read_item(item, TASKS, "default", NOW)
    assert (refused.value.status, refused.value.code, refused.value.param) == (422, "not_stored", "completion_id")


def test_an_answer_may_be_named_by_the_id_of_its_response() -> None:
    completion_id = new_completion_id()
    read, again = (
        read_item({"completion_id": given, "name": "accepted", "value": True, "id": "i"}, TASKS, "default", NOW)
        for given in (response_id_of(completion_id), completion_id)
    )
    assert read.signal.completion_id == completion_id
    assert read == again
    with pytest.raises(NotStored):
        read_item({"completion_id": response_id_of(UNKEPT)}, TASKS, "default", NOW)


def test_it_is_refused_alone_counted_and_written_nowhere(feedback: Feedback, database: Database) -> None:
    about = {"completion_id": UNKEPT, "comment": "canary"}
    single = feedback.send(**about)
    batch = feedback.call("POST", "/batch", json={"items": [feedback.item(**about), feedback.item(id="kept")]}).json()
    assert (single.status_code, single.json()["error"]["code"]) == (422, "not_stored")
    assert [error["error"]["code"] for error in batch["errors"]] == ["not_stored"]
    assert [item["id"] for item in batch["successes"]] == ["kept"]
    assert feedback.num_received() == 1
    assert feedback.counts() == {"rejected": 2}
    assert reasons(database) == {"not_stored": 2}


def test_every_refusal_has_a_reason(feedback: Feedback, database: Database) -> None:
    feedback.send(name="nosuch")
    feedback.send(name="thumbs", value="sideways")
    feedback.call("POST", "", content=b"{")
    feedback.call("POST", "/batch", json={"items": [feedback.item(choice=9), feedback.item(session_id="s")]})
    assert reasons(database) == {"unknown_signal": 1, "invalid_value": 1, "invalid_request": 2, "invalid_target": 1}
    assert feedback.counts() == {"rejected": 5}


@pytest.mark.parametrize(
    ("given", "param", "meant"),
    [
        ({"coment": "x"}, "coment", "did you mean comment"),
        ({"completionId": "x"}, "completionId", "did you mean completion_id"),
        ({"submitter": {"id": "ann", "type": "user"}}, "submitter.type", "submitter."),
        ({"zzz": 1}, "zzz", "there are name, value"),
        ({"x" * 9000: 1}, "x" * 64, "there are"),
    ],
)
def test_an_unknown_field_is_refused_with_the_one_that_was_meant(given: dict[str, Any], param: str, meant: str) -> None:
    item = {"completion_id": new_completion_id(), "name": "accepted", "value": True} | given
    with pytest.raises(InvalidRequest, match=meant) as refused:
        read_item(item, TASKS, "default", NOW)
    assert refused.value.param == param
    assert len(refused.value.message) < 400


def test_comment_and_metadata_are_kept_and_shown(feedback: Feedback) -> None:
    said = {"comment": "it forgot the candles", "metadata": {"screen": "receipt"}}
    assert feedback.send(id="fb-1", **said).status_code == 202
    shown = feedback.call("GET", "/fb-1").json()
    assert {name: shown[name] for name in said} == said
    assert feedback.send(id="fb-1", **said).json()["state"] == "duplicate"
    assert feedback.send(id="fb-1", **(said | {"comment": "or not"})).status_code == 409


@pytest.mark.parametrize(
    "changes",
    [
        {"comment": "x" * 16_385},
        {"metadata": {str(number): "" for number in range(17)}},
        {"metadata": {"k" * 65: ""}},
        {"metadata": {"k": "v" * 513}},
        {"metadata": {"k": 1}},
    ],
)
def test_both_are_bounded(changes: dict[str, Any]) -> None:
    item = {"completion_id": new_completion_id(), "name": "accepted", "value": True} | changes
    with pytest.raises(InvalidRequest) as refused:
        read_item(item, TASKS, "default", NOW)
    assert (refused.value.param or "").startswith(next(iter(changes)))


def test_graders_do_not_see_them(database: Database) -> None:
    """And a hundred long comments do not make an episode too large for the log."""
    join = Join(database, a_task({"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}))
    about = a_generation()
    join.hear(about)
    join.receive({"completion_id": about.completion_id, "comment": "candles", "metadata": {"screen": "a"}})
    [said] = [episode.signals[0] for episode in join.wait(1000.0)] or [join.sent[-1].signals[0]]  # type: ignore[attr-defined]
    assert (said.value, said.comment, said.metadata) == (True, None, None)


def known(feedback: Feedback, num_choices: int, tenant: str = "default") -> str:
    """The id of an answer that the join knows."""
    about = a_generation(num_choices=num_choices, tenant=tenant)
    row = {
        "completion_id": about.completion_id, "choice": 0, "partition": 0, "policy": "demo", "task": "booking",
        "purpose": "user", "arm": "live", "version": 0, "created_at": 100.0, "joined_at": 102.0, "revision": 0,
        "state": "pending", "state_reason": "", "state_writer": "", "state_epoch": 0, "state_revision": 0,
        "record": encode(about), "tenant": tenant,
    }  # fmt: skip
    with feedback.database.transaction() as connection:
        connection.execute(generation.insert().values(row))
    return about.completion_id


def test_a_choice_that_never_was_is_refused_where_the_answer_is_known(feedback: Feedback, database: Database) -> None:
    answer = known(feedback, 2)
    assert feedback.send(completion_id=answer, choice=1).status_code == 202
    refused = feedback.send(completion_id=answer, choice=2, id="beyond")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "no_such_choice")
    batch = feedback.call("POST", "/batch", json={"items": [feedback.item(completion_id=answer, choice=number)
                                                            for number in (0, 5, 1)]}).json()  # fmt: skip
    assert [error["index"] for error in batch["errors"]] == [1]
    assert reasons(database) == {"no_such_choice": 2}
    with database.snapshot() as connection:
        assert "beyond" not in connection.execute(received_signal.select()).scalars().all()


@pytest.mark.parametrize(("num_choices", "tenant"), [(0, "default"), (2, "other")])
def test_where_nobody_may_know_it_is_taken(feedback: Feedback, num_choices: int, tenant: str) -> None:
    """A record of schema 1 does not say how many there were, and of another tenant's answer nothing is told."""
    assert feedback.send(completion_id=known(feedback, num_choices, tenant), choice=5).status_code == 202
