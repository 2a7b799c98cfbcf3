"""names of replicas: a swap names its replica; a replica names its run, its base, and versions that it could not load."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3fa90b61c7d8"
down_revision = "7d21c4e9b0a3"


def upgrade() -> None:
    op.add_column("swap", sa.Column("replica", sa.String(length=64), nullable=False, server_default=""))
    op.add_column("engine_replica", sa.Column("run", sa.Text(), nullable=False, server_default=""))
    op.add_column("engine_replica", sa.Column("base", sa.String(length=64), nullable=False, server_default=""))
    op.add_column("engine_replica", sa.Column("problems", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    for name in ("problems", "base", "run"):
        op.drop_column("engine_replica", name)
    op.drop_column("swap", "replica")
