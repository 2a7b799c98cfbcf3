"""release trains: versions that are proven on users, what is compared, holds of operators, and webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c81f5d20be47"
down_revision = "a4d6c1e97f02"

_BIG_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_SORTED_KEY = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "train",
        sa.Column("id", _BIG_SERIAL, primary_key=True, autoincrement=True),
        sa.Column("policy", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("blessed", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("stage_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
    )
    op.create_index("ix_train_policy", "train", ["policy"])
    op.create_table(
        "train_answer",
        sa.Column("key", _SORTED_KEY, primary_key=True),
        sa.Column("policy", sa.String(64), nullable=False),
        sa.Column("arm", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("compared_with", sa.Integer, nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("unit_kind", sa.String(8), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False, server_default=""),
        sa.Column("sampling", sa.String(16), nullable=False),
        sa.Column("probability", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("reward", sa.Float, nullable=True),
        sa.Column("status", sa.String(16), nullable=False, server_default=""),
        sa.Column("scored_at", sa.Float, nullable=True),
        sa.Column("revision", sa.Integer, nullable=False, server_default="0"),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_train_answer_changed", "train_answer", ["policy", "changed"])
    op.create_index("ix_train_answer_at", "train_answer", ["at"])
    op.create_table(
        "train_point",
        sa.Column("policy", sa.String(64), primary_key=True),
        sa.Column("subject", sa.String(32), primary_key=True),
        sa.Column("at", sa.Float, primary_key=True),
        sa.Column("values", sa.JSON, nullable=False),
    )
    op.create_table(
        "train_hold",
        sa.Column("policy", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("version", sa.Integer, nullable=True),
        sa.Column("until", sa.Float, nullable=True),
        sa.Column("writer", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("live_epoch", sa.BigInteger, nullable=True),
    )
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("url", sa.Text, primary_key=True),
        sa.Column("policy", sa.String(64), nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("num_tries", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.Column("delivered_at", sa.Float, nullable=True),
        sa.Column("problem", sa.Text, nullable=False, server_default=""),
    )


def downgrade() -> None:
    for name in ("webhook_delivery", "train_hold", "train_point", "train_answer", "train"):
        op.drop_table(name)
