"""stored completions: a tenant's completions in the order of their ids, without those of others."""

from __future__ import annotations

from alembic import op

revision = "9c41d07be52a"
down_revision = "3fa90b61c7d8"


def upgrade() -> None:
    op.create_index("ix_generation_tenant", "generation", ["tenant", "purpose", "completion_id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_generation_tenant", table_name="generation")
