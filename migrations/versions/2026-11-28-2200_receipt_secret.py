"""The secret with which receipts for pages are written."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "3d9f27c5e8b1"
down_revision = "7e15c9d04ab3"

_SECRETS = sa.table("home_secret", sa.column("name", sa.String), sa.column("value", sa.String))


def upgrade() -> None:
    op.bulk_insert(_SECRETS, [{"name": "receipts", "value": secrets.token_hex(32)}])


def downgrade() -> None:
    op.execute(_SECRETS.delete().where(_SECRETS.c.name == "receipts"))
