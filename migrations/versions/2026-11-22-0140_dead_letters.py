"""dead letters keep their key and traceback, and whether somebody dealt with them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "8b27d4c90e16"
down_revision = "5f0c8a1d7e42"


def upgrade() -> None:
    op.add_column("dead_letter", sa.Column("key", sa.Text(), nullable=True))
    op.add_column("dead_letter", sa.Column("traceback", sa.Text(), nullable=True))
    op.add_column("dead_letter", sa.Column("state", sa.String(length=16), server_default="open", nullable=False))
    op.add_column("dead_letter", sa.Column("settled_at", sa.Float(), nullable=True))


def downgrade() -> None:
    for column in ("settled_at", "state", "traceback", "key"):
        op.drop_column("dead_letter", column)
