"""scoped keys: scopes, names, expiry and revocation of API keys; sessions know their key; answers and scores their tenant."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "5b0d7f3a9c16"
down_revision = "8d41c6e0b2f5"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("scopes", sa.String(length=128), nullable=False, server_default=""))
    op.add_column("api_key", sa.Column("name", sa.String(length=64), nullable=False, server_default=""))
    op.add_column("api_key", sa.Column("expires_at", sa.Float(), nullable=True))
    op.add_column("api_key", sa.Column("revoked_at", sa.Float(), nullable=True))
    key = sa.table("api_key", sa.column("role", sa.String()), sa.column("scopes", sa.String()))
    for role, scopes in (
        ("app", "feedback inference"),
        ("operator", "feedback inference operator:read operator:write"),
    ):
        op.execute(sa.update(key).where(key.c.role == role).values(scopes=scopes))
    op.add_column("dashboard_session", sa.Column("key_id", sa.String(length=32), nullable=True))
    # Sessions of keys said whose they are in their name only, as text: who has one signs in again.
    session = sa.table("dashboard_session", sa.column("role", sa.String()))
    op.execute(sa.delete(session).where(session.c.role != "viewer"))


def downgrade() -> None:
    op.drop_column("dashboard_session", "key_id")
    for name in ("revoked_at", "expires_at", "name", "scopes"):
        op.drop_column("api_key", name)
