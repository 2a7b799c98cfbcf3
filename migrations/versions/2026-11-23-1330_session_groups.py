"""session groups: sessions that try the same thing are compared with each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a4d6c1e97f02"
down_revision = "7b2e90c4d1f8"


def upgrade() -> None:
    op.add_column("agent_session", sa.Column("group_name", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("agent_session", "group_name")
