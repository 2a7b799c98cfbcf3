"""Signals that count: the join finds those of an answer, those that wait, and late tries, however many others there are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "7e15c9d04ab3"
down_revision = "7b0e93d1a4c6"

_INDICES = (
    ("ix_signal_heard", ["completion_id"], "reason IN ('', 'superseded')"),
    ("ix_signal_pending", ["state", "received_at"], "state = 'pending'"),
)


def upgrade() -> None:
    for name, columns, condition in _INDICES:
        op.create_index(name, "signal", columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))
    op.create_index("ix_waiting_signal_received_at", "waiting_signal", ["received_at"])
    _index_retries("joined_at")


def downgrade() -> None:
    _index_retries("request")
    op.drop_index("ix_waiting_signal_received_at", table_name="waiting_signal")
    for name, _, _ in _INDICES:
        op.drop_index(name, table_name="signal")


def _index_retries(column: str) -> None:
    name, condition = "ix_generation_retry", sa.text("retry_count > 0")
    op.drop_index(name, table_name="generation")
    op.create_index(name, "generation", [column], sqlite_where=condition, postgresql_where=condition)
