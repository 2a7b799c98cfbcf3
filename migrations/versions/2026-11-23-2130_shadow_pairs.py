"""shadow pairs and the error budget: what a shadow found so far, and how many false verdicts may still be risked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "5a2c9e7714d3"
down_revision = "e3b90c4a17d8"

_SORTED_KEY = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "shadow_pair",
        sa.Column("train", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key", _SORTED_KEY, primary_key=True),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("canary", sa.JSON, nullable=False),
        sa.Column("live", sa.JSON, nullable=False),
        sa.Column("left_out", sa.String(64), nullable=False),
    )
    op.create_table(
        "error_budget",
        sa.Column("policy", sa.String(64), primary_key=True),
        sa.Column("part", sa.String(16), primary_key=True),
        sa.Column("per_year", sa.Float, nullable=False),
        sa.Column("left", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("level", sa.Float, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for name in ("error_budget", "shadow_pair"):
        op.drop_table(name)
