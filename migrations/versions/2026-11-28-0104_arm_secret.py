"""The secret of the draw of arms; and whose key each compared answer was asked with (empty in older rows)."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "7b0e93d1a4c6"
down_revision = "c41b7a90d2e8"


def upgrade() -> None:
    made = op.create_table(
        "home_secret",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("value", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_home_secret"),
    )
    op.bulk_insert(made, [{"name": "arms", "value": secrets.token_hex(32)}])
    op.add_column("train_answer", sa.Column("tenant", sa.String(64), nullable=False, server_default=""))
    op.add_column("train_answer", sa.Column("api_key", sa.String(32), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("train_answer", "api_key")
    op.drop_column("train_answer", "tenant")
    op.drop_table("home_secret")
