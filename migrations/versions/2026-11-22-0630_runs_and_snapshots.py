"""runs and snapshots: an assignment says of which run its version is; the list of versions that was signed last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "4c19e07ab3d2"
down_revision = "b3f06a81d7c4"


def upgrade() -> None:
    # Null until `up` or training starts, which know the run from the settings.
    op.add_column("assignment", sa.Column("run", sa.Text(), nullable=True))
    op.add_column("assignment_change", sa.Column("run", sa.Text(), nullable=True))
    op.create_table(
        "weight_snapshot",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("policy", name=op.f("pk_weight_snapshot")),
    )


def downgrade() -> None:
    op.drop_table("weight_snapshot")
    op.drop_column("assignment_change", "run")
    op.drop_column("assignment", "run")
