"""What a person inserted into answers lately, and how many people repeat themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "e58a01c6f3b7"
down_revision = "a84c10e7d2f5"

_COUNTS = ("num_speaking", "num_repeating")


def upgrade() -> None:
    for name in _COUNTS:
        op.add_column("submitter", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column("submitter", sa.Column("edits", sa.LargeBinary))


def downgrade() -> None:
    for name in ("edits", *_COUNTS):
        op.drop_column("submitter", name)
