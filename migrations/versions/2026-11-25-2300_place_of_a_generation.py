"""The body once: the offset of a generation in its topic (empty in older rows), and outbox rows of many messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c41b7a90d2e8"
down_revision = "9d4e61b7c3f2"


def upgrade() -> None:
    op.add_column("generation", sa.Column("offset", sa.BigInteger))
    op.add_column("outbox", sa.Column("num_messages", sa.Integer, nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("outbox", "num_messages")
    op.drop_column("generation", "offset")
