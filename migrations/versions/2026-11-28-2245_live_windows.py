"""Windows of live answers that close are found however many imported answers wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a84c10e7d2f5"
down_revision = "7e15c9d04ab3"

_INDEX, _IS_LIVE = "ix_generation_live_closes_at", sa.text("purpose <> 'imported'")


def upgrade() -> None:
    op.create_index(_INDEX, "generation", ["closes_at"], sqlite_where=_IS_LIVE, postgresql_where=_IS_LIVE)


def downgrade() -> None:
    op.drop_index(_INDEX, table_name="generation")
