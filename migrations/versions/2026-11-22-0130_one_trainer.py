"""one trainer: its lease, the epochs and versions it claims, how far its words hold; versions that were revoked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "5f0c8a1d7e42"
down_revision = "e19ec36c858b"


def upgrade() -> None:
    op.create_table(
        "training_lease",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("holder", sa.JSON(), nullable=False),
        sa.Column("renewed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", name=op.f("pk_training_lease")),
    )
    op.create_table(
        "training_epoch",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("holder", sa.JSON(), nullable=False),
        sa.Column("issued_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "epoch", name=op.f("pk_training_epoch")),
    )
    op.create_table(
        "version_claim",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("root", sa.String(length=64), nullable=True),
        sa.Column("claimed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "version", name=op.f("pk_version_claim")),
    )
    op.create_table(
        "revocation",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("treatment", sa.String(length=16), nullable=False),
        sa.Column("writer", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "version", name=op.f("pk_revocation")),
    )
    op.create_table(
        "ledger_epoch",
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("previous", sa.Integer(), nullable=True),
        sa.Column("kept_sequence", sa.BigInteger(), nullable=False),
        sa.Column("valid_through", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_ledger_epoch")),
    )
    op.add_column("assignment", sa.Column("root", sa.String(length=64), nullable=True))
    op.add_column("assignment_change", sa.Column("root", sa.String(length=64), nullable=True))
    op.add_column("generation", sa.Column("state_sequence", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("outcome", sa.Column("sequence", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("outcome", "sequence")
    op.drop_column("generation", "state_sequence")
    op.drop_column("assignment_change", "root")
    op.drop_column("assignment", "root")
    for table in ("ledger_epoch", "revocation", "version_claim", "training_epoch", "training_lease"):
        op.drop_table(table)
