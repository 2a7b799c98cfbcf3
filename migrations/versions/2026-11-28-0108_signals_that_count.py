"""Signals that count: the join finds those of an answer, those that wait, and late tries, however many others there are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "7e15c9d04ab3"
down_revision = "7b0e93d1a4c6"

_INDICES = (
    ("ix_signal_heard", "signal", ["completion_id"], "reason IN ('', 'superseded')"),
    ("ix_signal_pending", "signal", ["state", "received_at"], "state = 'pending'"),
    ("ix_generation_retry_joined_at", "generation", ["joined_at"], "retry_count > 0"),
)


def upgrade() -> None:
    for name, table, columns, condition in _INDICES:
        op.create_index(name, table, columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))
    op.create_index("ix_waiting_signal_received_at", "waiting_signal", ["received_at"])


def downgrade() -> None:
    op.drop_index("ix_waiting_signal_received_at", table_name="waiting_signal")
    for name, table, _, _ in _INDICES:
        op.drop_index(name, table_name=table)
