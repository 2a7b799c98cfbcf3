"""the trainer's words hold by sequence: old epochs are written down, and what changes is looked at again in pieces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "8d4b6e02c9f1"
down_revision = "8b27d4c90e16"


def upgrade() -> None:
    op.create_table(
        "ledger_change",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("after_sequence", sa.BigInteger(), nullable=False),
        sa.Column(
            "after_key",
            sa.String(length=128).with_variant(sa.String(length=128, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column("through_sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_change")),
    )
    op.drop_index("ix_outcome_epoch", table_name="outcome")
    op.create_index("ix_outcome_told", "outcome", ["epoch", "sequence", "key"])
    op.drop_index("ix_generation_state", table_name="generation")
    op.create_index(
        "ix_generation_state", "generation", ["state", "version", "state_writer", "state_epoch", "state_sequence"]
    )
    # What the trainer said in its newest epoch holds, until it starts again and tells everything once more by number (2**62: all of it).
    op.execute(
        "INSERT INTO ledger_epoch (epoch, previous, kept_sequence, valid_through, at) "
        "SELECT epoch, NULL, -1, 4611686018427387904, max(at) FROM outcome WHERE writer = 'training' "
        "AND epoch = (SELECT max(epoch) FROM outcome WHERE writer = 'training') GROUP BY epoch"
    )


def downgrade() -> None:
    op.execute("DELETE FROM ledger_epoch")
    op.drop_index("ix_generation_state", table_name="generation")
    op.create_index("ix_generation_state", "generation", ["state", "version", "state_writer", "state_epoch"])
    op.drop_index("ix_outcome_told", table_name="outcome")
    op.create_index("ix_outcome_epoch", "outcome", ["epoch"])
    op.drop_table("ledger_change")
