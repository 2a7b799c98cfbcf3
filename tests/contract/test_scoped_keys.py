"""A home older than scopes: its keys keep every right of their role, and its logged records are shown to their tenant."""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, MetaData, Table, insert, select

from contracts.keys import ROLE_SCOPES, check_key, list_keys
from contracts.records import Generation
from contracts.tables import dashboard_session, generation, score
from runtime.database import Database
from runtime.days import migrate
from services.dashboard.tenant.queries import read_scores, read_totals
from tests.contract.test_upgrade import as_it_was, go_to, write, write_generation
from tests.fakes import a_generation

BEFORE = "8d41c6e0b2f5"
SECRET = "0" * 48
NUM_ANSWERS = 1_100
"""More than the migration takes at once."""


def test_keys_keep_their_rights_and_answers_find_their_tenant(empty_database: Database) -> None:
    go_to(empty_database, BEFORE)
    records = [a_generation(tenant="acme" if number % 2 else "default") for number in range(NUM_ANSWERS)]
    with empty_database.transaction() as connection:
        for role in ROLE_SCOPES:
            hashed = hashlib.sha256(SECRET.encode()).hexdigest()
            write(
                connection,
                "api_key",
                id=f"{role:0<12}"[:12],
                secret_hash=hashed,
                role=role,
                tenant="acme",
                created_at=1.0,
            )
            row = {"name": role, "csrf": "", "started_at": 1.0, "used_at": 1.0}
            write(connection, "dashboard_session", id_hash=role, role=role, **row)
        write(connection, "dashboard_session", id_hash="link", role="viewer", **row)
        _write_answers(connection, records)

    migrate(empty_database)

    with empty_database.snapshot() as connection:
        for role, scopes in ROLE_SCOPES.items():
            caller = check_key(connection, f"Bearer mr-{role}-{f'{role:0<12}'[:12]}-{SECRET}")
            assert (caller.role, caller.tenant, caller.scopes, caller.expires_at) == (role, "acme", scopes, None)
        assert [(row.name, row.revoked_at) for row in list_keys(connection)] == [("", None)] * 2
        # Older sessions do not name their key in a form that can be checked, so their people sign in again.
        assert list(connection.execute(select(dashboard_session.c.id_hash)).scalars()) == ["link"]
        told = {row[0]: row[1] for row in connection.execute(select(generation.c.completion_id, generation.c.tenant))}
        scored = {row[0]: row[1] for row in connection.execute(select(score.c.key, score.c.tenant))}
        totals = read_totals(connection)
        mine = read_scores(connection, "acme")
    assert {record.completion_id: record.tenant for record in records}.items() <= told.items()
    assert scored == {record.key: record.tenant for record in records}
    assert sum(value is None for value in told.values()) == 1
    assert {name: [row.number for row in rows] for name, rows in totals.state_counts.items()} == {
        "acme": [NUM_ANSWERS // 2], "default": [NUM_ANSWERS // 2]
    }  # fmt: skip
    assert len(mine) == NUM_ANSWERS // 2


def _write_answers(connection: Connection, records: list[Generation]) -> None:
    """Older rows, scored; and one whose record cannot be read."""
    broken = a_generation()
    write_generation(connection, broken)
    answers, scores = (Table(name, MetaData(), autoload_with=connection) for name in ("generation", "score"))
    like = connection.execute(select(answers)).one()._asdict()
    rows = [{"completion_id": record.completion_id, "record": as_it_was(record)} for record in records]
    connection.execute(insert(answers), [like | row for row in rows])
    connection.execute(answers.update().where(answers.c.completion_id == broken.completion_id).values(record=b"\xc1"))
    scored = {
        "revision": 1, "task": "booking", "purpose": "user", "version": 0, "reward": 1.0, "status": "scored",
        "fault": "none", "components": [], "at": 103.0,
    }  # fmt: skip
    connection.execute(insert(scores), [{"key": record.key, **scored} for record in records])
