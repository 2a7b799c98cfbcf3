"""Stored completions among many rows of several tenants, on both databases: no page ends early, none reads what is not the tenant's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select, text

from contracts.errors import InvalidRequest
from contracts.ids import new_completion_id
from contracts.records import Generation, encode, pack_body
from contracts.tables import generation
from runtime.database import Database
from services.inference.stored.queries import StoredSearch, find_stored
from tests.fakes import a_generation

OURS, THEIRS = "ours", "theirs"
NUM, NUM_THEIRS, LABELLED = 6_000, 3_000, (50, 3_210, 5_999)
POLICY = "demo"


def row(record: Generation, wire: bytes, **changes: Any) -> dict[str, Any]:
    return {
        "completion_id": record.completion_id, "choice": 0, "partition": 0, "policy": POLICY, "task": record.task, "tenant": OURS,
        "purpose": "user", "arm": "live", "version": 1, "created_at": 1.0, "joined_at": 1.0, "closes_at": None, "revision": 1,
        "state": "pending", "state_reason": "", "state_writer": "episodes", "state_epoch": 0, "state_revision": 1,
        "state_version": None, "record": wire, **changes,
    }  # fmt: skip


@pytest.fixture
def ids(any_database: Database) -> list[str]:
    """Ours, in order. Three have the label; one of these has a second choice of another version."""
    made = sorted(new_completion_id() for _ in range(NUM))
    model = a_generation()
    plain = encode(model)
    rare = pack_body(msgspec.structs.replace(model.open(), metadata={"trace": "rare"}))
    rows = []
    for place, name in enumerate(made):
        body = rare if place in LABELLED else model.body
        record = msgspec.structs.replace(model, completion_id=name, body=body)
        rows.append(row(record, encode(record)))
    rows.append(row(model, plain, completion_id=made[LABELLED[1]], choice=1, version=7))
    rows += [
        row(model, plain, completion_id=new_completion_id(), tenant=tenant, purpose=purpose)
        for tenant, purpose in ((THEIRS, "user"), (OURS, "rollout"))
        for _ in range(NUM_THEIRS)
    ]
    with any_database.transaction() as connection:
        for start in range(0, len(rows), 500):
            connection.execute(insert(generation), rows[start : start + 500])
    return made


def found(database: Database, **changes: Any) -> tuple[list[str], bool]:
    with database.snapshot() as connection:
        page = find_stored(connection, StoredSearch(tenant=OURS, policy=POLICY, **changes))
    return [choices[0].record.completion_id for choices in page.completions], page.has_more


@pytest.mark.slow
def test_a_rare_label_is_found_in_one_full_page(any_database: Database, ids: list[str]) -> None:
    rare = [ids[place] for place in LABELLED]
    wanted = {"metadata": {"trace": "rare"}}
    assert found(any_database, **wanted, limit=3) == (rare, False)
    assert found(any_database, **wanted, limit=2) == (rare[:2], True)
    assert found(any_database, **wanted, limit=2, newest_first=True) == (rare[:0:-1], True)
    assert found(any_database, **wanted, limit=2, after=rare[1]) == (rare[2:], False)
    assert found(any_database, metadata={"trace": "none"}, limit=2) == ([], False)
    assert found(any_database, version=7) == ([ids[LABELLED[1]]], False)
    with any_database.snapshot() as connection:
        theirs = find_stored(connection, StoredSearch(tenant=THEIRS, policy=POLICY, metadata={"trace": "rare"}))
    assert theirs == ([], False)


@pytest.mark.slow
def test_every_completion_is_on_one_page(any_database: Database, ids: list[str]) -> None:
    seen: list[str] = []
    more = True
    while more:
        page, more = found(any_database, limit=100, after=seen[-1] if seen else None, newest_first=True)
        seen += page
    assert seen == ids[::-1]


@pytest.mark.slow
def test_a_search_that_gives_up_says_how_to_go_on(any_database: Database, ids: list[str]) -> None:
    rare: dict[str, Any] = {"metadata": {"trace": "rare"}, "most_read": 1_000}
    with pytest.raises(InvalidRequest, match="go on with after=chatcmpl-") as raised:
        found(any_database, **rare, after=ids[50])
    after = raised.value.message.partition("after=")[2]
    assert ids[50] < after < ids[3_210]
    assert raised.value.param == "metadata"
    assert found(any_database, **rare, after=after) == ([ids[3_210]], True)


@pytest.mark.slow
def test_the_tenant_has_an_index(any_database: Database, ids: list[str]) -> None:
    explain = "EXPLAIN QUERY PLAN" if any_database.url.startswith("sqlite") else "EXPLAIN"
    place = generation.c.completion_id
    walk = select(place).where(generation.c.tenant == THEIRS, generation.c.purpose == "user", place > ids[0])
    with any_database.transaction() as connection:
        if explain == "EXPLAIN":
            connection.execute(text("ANALYZE generation"))
        written = walk.order_by(place).limit(10).compile(connection, compile_kwargs={"literal_binds": True})
        plan = connection.execute(text(f"{explain} {written}")).all()
    assert "tenant" in str(plan)
