"""What became of an answer, as its app may ask: pending, learned, revised, taken back; a provider's; and nobody else's."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import insert, update

from contracts.ids import new_completion_id, response_id_of, sample_key
from contracts.keys import NewKey, create_key, make_key
from contracts.ledger import MAX_SCORES, NO_END
from contracts.records import Provided, Signal, Submitter, encode
from contracts.tables import generation, ledger_epoch, outcome, score, signal
from runtime.database import Database
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.test_stored import join

pytestmark = pytest.mark.usefixtures("alone")


def ask(inference: Inference, completion_id: str, key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or inference.key}"}
    return httpx.get(f"{inference.url}/v1/completions/{completion_id}/attribution", headers=headers, timeout=10)


def choice_of(inference: Inference, completion_id: str) -> dict[str, Any]:
    shown = ask(inference, completion_id).json()
    assert (shown["id"], shown["object"]) == (completion_id, "completion.attribution")
    [choice] = shown["choices"]
    return dict(choice)


def say(database: Database, completion_id: str, tenant: str, name: str, value: bool | str) -> None:
    said = Signal(
        id=f"{tenant}-{name}", completion_id=completion_id, choice=0, name=name, value=value, at=5.0, received_at=6.0,
        tenant=tenant, submitter=Submitter(id="u1"),
    )  # fmt: skip
    row = {
        name: getattr(said, name) for name in ("id", "completion_id", "choice", "name", "at", "received_at", "tenant")
    }
    row |= {"submitter": "u1", "state": "joined", "reason": "", "revision": 1, "record": encode(said)}
    with database.transaction() as connection:
        connection.execute(insert(signal), row)


def grade(database: Database, completion_id: str, revision: int, reward: float) -> None:
    part = {"name": "edited", "grader": "signal/1#ab", "value": reward}
    row = {
        "key": sample_key(completion_id, 0), "revision": revision, "task": "booking", "purpose": "user", "version": 3,
        "reward": reward, "status": "scored", "fault": "none", "components": [part], "at": 7.0,
    }  # fmt: skip
    with database.transaction() as connection:
        connection.execute(insert(score), row)


def settle(database: Database, completion_id: str, **state: Any) -> None:
    with database.transaction() as connection:
        connection.execute(update(generation).where(generation.c.completion_id == completion_id).values(**state))


def tell(database: Database, completion_id: str, epoch: int, revision: int, version: int) -> None:
    row = {
        "key": sample_key(completion_id, 0), "revision": revision, "epoch": epoch, "state": "trained", "reason": "",
        "version": version, "writer": "training", "at": 8.0 + revision, "sequence": 9,
    }  # fmt: skip
    with database.transaction() as connection:
        connection.execute(insert(outcome), row)


def test_a_pending_answer_says_what_it_waits_for(inference: Inference, database: Database) -> None:
    answer = inference.ask(n=2).id
    assert ask(inference, answer).status_code == 404  # not joined yet
    join(inference, database)
    settle(database, answer, revision=0)

    shown = ask(inference, answer).json()["choices"]
    assert [(one["index"], one["state"], one["waits_for"]) for one in shown] == [
        (0, "pending", "signals"),
        (1, "pending", "signals"),
    ]
    assert shown[0] | {"created": 0} == {
        "index": 0, "task": "booking", "purpose": "user", "arm": shown[0]["arm"], "policy_version": 3, "provider": None, "created": 0,
        "state": "pending", "reason": "", "waits_for": "signals", "learned_by": None, "superseded_by": None, "reward": None,
        "signals": [], "scores": [], "outcomes": [],
    }  # fmt: skip
    settle(database, answer, revision=1)
    assert ask(inference, answer).json()["choices"][0]["waits_for"] == "reward"
    grade(database, answer, 1, 0.5)
    assert ask(inference, answer).json()["choices"][0]["waits_for"] == "training"


def test_a_learned_answer_shows_signals_reward_parts_and_version_of_every_revision(
    inference: Inference, database: Database
) -> None:
    answer = inference.ask().id
    join(inference, database)
    say(database, answer, "default", "accepted", value=True)
    say(database, answer, "default", "edited", "four")
    say(database, answer, "stranger", "edited", "not theirs to see")
    grade(database, answer, 1, 1.0)
    grade(database, answer, 2, 0.25)
    tell(database, answer, 1, 1, 4)
    tell(database, answer, 1, 2, 5)
    settle(database, answer, revision=2, state="trained", state_version=4, state_writer="training", state_epoch=1)

    shown = choice_of(inference, answer)
    assert (shown["state"], shown["waits_for"], shown["learned_by"], shown["reward"]) == ("trained", None, 4, 0.25)
    assert [(said["name"], said["value"], said["state"], said["submitter"]) for said in shown["signals"]] == [
        ("accepted", True, "joined", {"id": "u1", "kind": "user"}),
        ("edited", "four", "joined", {"id": "u1", "kind": "user"}),
    ]
    assert [(graded["revision"], graded["reward"]) for graded in shown["scores"]] == [(1, 1.0), (2, 0.25)]
    [part] = shown["scores"][1]["parts"]
    assert (part["name"], part["value"], part["weight"], part["status"]) == ("edited", 0.25, 1.0, "scored")
    assert [(told["revision"], told["version"], told["valid"]) for told in shown["outcomes"]] == [
        (1, 4, True),
        (2, 5, True),
    ]


def test_of_a_long_history_the_newest_part_is_shown(inference: Inference, database: Database) -> None:
    answer = inference.ask().id
    join(inference, database)
    for revision in range(MAX_SCORES + 1):
        grade(database, answer, revision + 1, revision / 100)
    settle(database, answer, revision=MAX_SCORES + 1)

    shown = choice_of(inference, answer)
    assert (shown["reward"], shown["waits_for"]) == (MAX_SCORES / 100, "training")
    assert [graded["revision"] for graded in shown["scores"]] == list(range(2, MAX_SCORES + 2))


def test_what_a_later_epoch_took_back_is_pending_again(inference: Inference, database: Database) -> None:
    answer = inference.ask().id
    join(inference, database)
    grade(database, answer, 1, 1.0)
    tell(database, answer, 1, 1, 4)
    settle(database, answer, state="trained", state_version=4, state_writer="training", state_epoch=1, state_sequence=9)
    with database.transaction() as connection:
        ends = [{"epoch": 1, "valid_through": 3}, {"epoch": 2, "valid_through": NO_END}]
        connection.execute(insert(ledger_epoch), [{"kept_sequence": 0, "at": 9.0, **end} for end in ends])

    shown = choice_of(inference, answer)
    assert (shown["state"], shown["waits_for"], shown["learned_by"]) == ("pending", "training", None)
    assert [told["valid"] for told in shown["outcomes"]] == [False]


def test_an_answer_of_a_provider_or_an_import_names_it(inference: Inference, database: Database) -> None:
    answer = inference.ask().id
    join(inference, database)
    [record] = inference.logged()
    provided = Provided(origin="langfuse", model="gpt-x", may_train=True, import_id="im-1")
    imported = encode(replace(record, provided=provided))
    settle(
        database, answer, purpose="imported", version=-1, state="off_support", state_reason="provider", record=imported
    )

    shown = choice_of(inference, answer)
    assert (shown["purpose"], shown["policy_version"], shown["state"], shown["reason"]) == (
        "imported", None, "off_support", "provider",
    )  # fmt: skip
    assert shown["provider"] == {"origin": "langfuse", "model": "gpt-x", "may_train": True, "import_id": "im-1"}


def test_a_record_that_cannot_be_read_still_has_its_history(inference: Inference, database: Database) -> None:
    answer = inference.ask().id
    join(inference, database)
    say(database, answer, "default", "accepted", value=True)
    settle(database, answer, record=b"?")
    with database.transaction() as connection:
        connection.execute(update(signal).values(record=b"?"))

    [said] = choice_of(inference, answer)["signals"]
    assert (said["name"], said["value"], said["submitter"]) == ("accepted", None, {"id": "u1"})


def test_only_its_own_tenant_sees_it_and_only_with_both_scopes(inference: Inference, database: Database) -> None:
    answer = inference.ask().id
    join(inference, database)
    with database.transaction() as connection:
        stranger = create_key(connection, "operator", "stranger")
        narrow = make_key(connection, NewKey("app", "default", frozenset(("inference",))))

    assert ask(inference, answer).status_code == 200
    assert ask(inference, response_id_of(answer)).json() == ask(inference, answer).json()
    for completion_id, key in ((answer, stranger), (new_completion_id(), None), ("chatcmpl-x", None), ("x%00", None)):
        refused = ask(inference, completion_id, key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    assert ask(inference, answer, narrow).json()["error"]["code"] == "missing_scope"
