"""scoped keys: scopes, names, expiry and revocation of API keys; sessions know their key; answers and scores their tenant."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "5b0d7f3a9c16"
down_revision = "8d41c6e0b2f5"

_BATCH = 1000
_MAX_TENANT = 64
_SCOPES = {"app": "feedback inference", "operator": "feedback inference operator:read operator:write"}
_STATE = ["state", "version", "state_writer", "state_epoch", "state_sequence"]


class _Head(msgspec.Struct):
    tenant: str


def upgrade() -> None:
    op.add_column("api_key", sa.Column("scopes", sa.String(length=128), nullable=False, server_default=""))
    op.add_column("api_key", sa.Column("name", sa.String(length=64), nullable=False, server_default=""))
    op.add_column("api_key", sa.Column("expires_at", sa.Float(), nullable=True))
    op.add_column("api_key", sa.Column("revoked_at", sa.Float(), nullable=True))
    key = sa.table("api_key", sa.column("role", sa.String()), sa.column("scopes", sa.String()))
    for role, scopes in _SCOPES.items():
        op.execute(sa.update(key).where(key.c.role == role).values(scopes=scopes))
    op.add_column("dashboard_session", sa.Column("key_id", sa.String(length=32), nullable=True))
    # Sessions of keys said whose they are in their name only, as text: who has one signs in again.
    session = sa.table("dashboard_session", sa.column("role", sa.String()))
    op.execute(sa.delete(session).where(session.c.role != "viewer"))
    op.add_column("generation", sa.Column("tenant", sa.String(length=64), nullable=True))
    op.add_column("score", sa.Column("tenant", sa.String(length=64), nullable=True))
    _note_tenants(op.get_bind())
    op.drop_index("ix_generation_state", table_name="generation")
    op.create_index("ix_generation_state", "generation", [*_STATE, "tenant"])
    op.drop_index("ix_signal_state", table_name="signal")
    op.create_index("ix_signal_state", "signal", ["state", "tenant"])


def downgrade() -> None:
    op.drop_index("ix_signal_state", table_name="signal")
    op.create_index("ix_signal_state", "signal", ["state"])
    op.drop_index("ix_generation_state", table_name="generation")
    op.create_index("ix_generation_state", "generation", _STATE)
    op.drop_column("score", "tenant")
    op.drop_column("generation", "tenant")
    op.drop_column("dashboard_session", "key_id")
    for name in ("revoked_at", "expires_at", "name", "scopes"):
        op.drop_column("api_key", name)


def _note_tenants(connection: sa.Connection) -> None:
    """From the records' heads: no other place says whose an answer is. One that cannot be read stays without, for operators only."""
    meta = sa.MetaData()
    generation = sa.Table("generation", meta, autoload_with=connection)
    score = sa.Table("score", meta, autoload_with=connection)
    mine = (generation.c.completion_id == sa.bindparam("its_id"), generation.c.choice == sa.bindparam("its_choice"))
    of_answer = sa.update(generation).where(*mine).values(tenant=sa.bindparam("its_tenant"))
    of_score = sa.update(score).where(score.c.key == sa.bindparam("its_key")).values(tenant=sa.bindparam("its_tenant"))
    order = (generation.c.completion_id, generation.c.choice)
    after: tuple[Any, ...] | None = None
    while True:
        page = sa.select(*order, generation.c.record).order_by(*order).limit(_BATCH)
        if after is not None:
            page = page.where(sa.tuple_(*order) > sa.tuple_(*after))
        rows = list(connection.execute(page))
        if not rows:
            return
        after = (rows[-1].completion_id, rows[-1].choice)
        told = [(row, tenant) for row in rows if (tenant := _tenant_of(row.record)) is not None]
        if told:
            answers = [
                {"its_id": row.completion_id, "its_choice": row.choice, "its_tenant": tenant} for row, tenant in told
            ]
            connection.execute(of_answer, answers)
            scores = [{"its_key": f"{row.completion_id}:{row.choice}", "its_tenant": tenant} for row, tenant in told]
            connection.execute(of_score, scores)


def _tenant_of(record: bytes) -> str | None:
    try:
        tenant = msgspec.msgpack.decode(record, type=_Head).tenant
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return tenant if len(tenant) <= _MAX_TENANT and "\0" not in tenant else None
