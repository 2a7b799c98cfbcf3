"""Stored completions through the unmodified OpenAI SDK: listed, shown, and nobody else's."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from sqlalchemy import insert, select, update

from contracts.ids import new_completion_id, route_of
from contracts.keys import create_key
from contracts.records import Generation, GenerationBody, decode, encode, pack_body
from contracts.tables import generation
from runtime.database import Database
from services.inference.stored import queries
from tests.unit.services.inference.conftest import Inference

TEXT = "Tisch für 4: {ok}"


def join(inference: Inference, database: Database) -> None:
    """Write what was logged into the table of the join, which does so in another process."""
    rows = [
        {
            "completion_id": record.completion_id, "choice": record.choice, "partition": route_of(record.completion_id) % 4,
            "policy": record.policy, "task": record.task, "tenant": record.tenant, "purpose": record.purpose,
            "arm": record.arm, "version": record.spans[0].version, "created_at": record.created_at,
            "joined_at": record.created_at, "closes_at": None, "revision": 1, "state": "pending", "state_reason": "",
            "state_writer": "episodes", "state_epoch": 0, "state_revision": 1, "state_version": None,
            "record": encode(record),
        }
        for record in inference.logged()
    ]  # fmt: skip
    with database.transaction() as connection:
        connection.execute(insert(generation), rows)


def ids_of(page: Any) -> list[str]:
    return [completion.id for completion in page]


@pytest.mark.usefixtures("alone")
def test_a_completion_is_shown_as_it_was_answered(inference: Inference, database: Database) -> None:
    metadata = {"session_id": "s1", "trace": "7"}
    answer = inference.ask(n=2, metadata=metadata, user="u1")
    join(inference, database)

    shown = inference.client.chat.completions.retrieve(answer.id)

    assert (shown.id, shown.object, shown.created, shown.model) == (
        answer.id,
        "chat.completion",
        answer.created,
        "demo",
    )
    assert [(choice.index, choice.finish_reason, choice.message.content) for choice in shown.choices] == [
        (0, "stop", TEXT),
        (1, "stop", TEXT),
    ]
    assert shown.usage is not None
    assert answer.usage is not None
    was_kept = {"prompt_tokens_details": None}  # how much an engine had computed before is not stored
    assert shown.usage.model_dump() == answer.usage.model_dump() | was_kept
    assert shown.system_fingerprint == answer.system_fingerprint
    assert shown.model_extra is not None
    assert shown.to_dict()["metadata"] == metadata
    assert shown.model_extra["sampling"] == answer.model_extra["sampling"]


@pytest.mark.usefixtures("alone")
def test_messages_come_in_pages(inference: Inference, database: Database) -> None:
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = inference.ask(messages=messages)
    join(inference, database)

    listed = inference.client.chat.completions.messages.list
    assert [(m.role, m.content) for m in listed(answer.id)] == [("system", "be brief"), ("user", "hi")]
    assert [m.content for m in listed(answer.id, limit=1)] == ["be brief", "hi"]
    first = listed(answer.id, limit=1, order="desc")
    assert ([m.content for m in first.data], first.has_more) == (["hi"], True)
    assert listed(answer.id, after=f"{answer.id}-1").data == []
    with pytest.raises(openai.BadRequestError) as refused:
        listed(answer.id, after="nothing")
    assert refused.value.param == "after"


@pytest.mark.usefixtures("alone")
def test_completions_are_listed_in_pages_in_both_directions(inference: Inference, database: Database) -> None:
    asked = [inference.ask(metadata={"number": str(number % 2)}).id for number in range(5)]
    hidden = inference.ask(store=False).id
    join(inference, database)

    listed = inference.client.chat.completions.list
    assert ids_of(listed()) == sorted(asked)
    assert ids_of(listed(limit=2)) == sorted(asked)
    assert ids_of(listed(limit=2, order="desc")) == sorted(asked, reverse=True)
    assert (ids_of(listed(limit=2).data), listed(limit=2).has_more) == (sorted(asked)[:2], True)
    assert listed(limit=5).has_more is False
    assert ids_of(listed(after=sorted(asked)[3])) == [sorted(asked)[4]]
    assert ids_of(listed(metadata={"number": "1"}, limit=1)) == sorted([asked[1], asked[3]])
    assert ids_of(listed(metadata={"number": "1", "x": "y"})) == []
    assert ids_of(listed(model="demo@v3")) == sorted(asked)
    assert ids_of(listed(model="demo@v4")) == []
    assert hidden not in ids_of(listed())


@pytest.mark.usefixtures("alone")
def test_nobody_sees_completions_of_another_tenant(inference: Inference, database: Database) -> None:
    answer = inference.ask()
    join(inference, database)
    with database.transaction() as connection:
        stranger = inference.client.with_options(api_key=create_key(connection, "operator", "stranger"))

    completions = stranger.chat.completions
    assert ids_of(completions.list()) == []
    for ask in (
        lambda: completions.retrieve(answer.id),
        lambda: completions.messages.list(answer.id),
        lambda: completions.update(answer.id, metadata={"a": "b"}),
        lambda: completions.delete(answer.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()


@pytest.mark.usefixtures("alone")
def test_erased_and_unknown_completions_do_not_exist(inference: Inference, database: Database) -> None:
    answer = inference.ask()
    join(inference, database)
    with database.transaction() as connection:
        connection.execute(update(generation).values(state="erased"))

    assert ids_of(inference.client.chat.completions.list()) == []
    for name in (answer.id, new_completion_id(), "chatcmpl-x", "x%00y", "\U0001f37d"):
        response = httpx.get(
            f"{inference.url}/v1/chat/completions/{name}", headers={"authorization": f"Bearer {inference.key}"}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.usefixtures("alone")
def test_a_record_that_cannot_be_read_hides_only_itself(inference: Inference, database: Database) -> None:
    broken, whole = inference.ask().id, inference.ask().id
    join(inference, database)
    with database.transaction() as connection:
        connection.execute(update(generation).where(generation.c.completion_id == broken).values(record=b"\x93junk"))

    assert ids_of(inference.client.chat.completions.list()) == [whole]


@pytest.mark.usefixtures("alone")
def test_an_arm_that_gave_no_token_left_no_completion(inference: Inference, database: Database) -> None:
    answer = inference.ask()
    join(inference, database)
    body = GenerationBody(messages=[], text="", prompt_ids=b"", completion_ids=b"", logprobs=b"")
    with database.transaction() as connection:
        held = decode(Generation, connection.execute(select(generation.c.record)).scalar_one())
        silent = encode(replace(held, spans=(), finish_reason="error", body=pack_body(body)))
        connection.execute(update(generation).values(record=silent))
    assert ids_of(inference.client.chat.completions.list()) == []
    with pytest.raises(openai.NotFoundError):
        inference.client.chat.completions.retrieve(answer.id)


@pytest.mark.usefixtures("alone")
def test_changes_are_refused_by_name(inference: Inference, database: Database) -> None:
    answer = inference.ask()
    join(inference, database)

    with pytest.raises(openai.BadRequestError) as changed:
        inference.client.chat.completions.update(answer.id, metadata={"a": "b"})
    with pytest.raises(openai.BadRequestError) as deleted:
        inference.client.chat.completions.delete(answer.id)
    assert (changed.value.code, changed.value.param) == ("unsupported_parameter", "metadata")
    assert (deleted.value.code, deleted.value.param) == ("unsupported_parameter", "completion_id")
    assert inference.client.chat.completions.retrieve(answer.id).id == answer.id


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("limit=0", 400, "limit"),
        ("limit=101", 400, "limit"),
        ("limit=many", 400, "limit"),
        ("order=up", 400, "order"),
        ("after=x", 400, "after"),
        ("after=%00", 400, "after"),
        ("model=gpt", 404, "model"),
        ("befor=1", 400, "befor"),
    ],
)
def test_bad_parameters_are_named(inference: Inference, query: str, status: int, param: str) -> None:
    headers = {"authorization": f"Bearer {inference.key}"}
    response = httpx.get(f"{inference.url}/v1/chat/completions?{query}", headers=headers)

    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


@pytest.mark.usefixtures("alone")
def test_a_page_ends_when_its_bodies_are_large(
    inference: Inference, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [inference.ask().id for _ in range(3)]
    join(inference, database)
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 1)
    page = inference.client.chat.completions.list(limit=3)
    assert (ids_of(page.data), page.has_more) == (asked[:1], True)
    assert ids_of(inference.client.chat.completions.list(limit=3)) == asked
