"""API keys: `mr-<role>-<id>-<secret>`. Only a hash of the secret is stored; the tenant is bound to the key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Literal, NamedTuple

from sqlalchemy import Connection, insert, select

from contracts.errors import Forbidden, Unauthorized
from contracts.tables import api_key

Role = Literal["app", "operator"]
_PARTS = 4


class Caller(NamedTuple):
    """Who makes a request."""

    key_id: str
    role: Role
    tenant: str

    def require_operator(self) -> None:
        """Raises Forbidden unless the key is an operator's."""
        if self.role != "operator":
            raise Forbidden("this needs an operator key; `millrace keys --role operator` makes one")


def create_key(connection: Connection, role: Role, tenant: str = "default") -> str:
    """Make a key. The returned text is the only copy of the secret."""
    key_id, secret = secrets.token_hex(6), secrets.token_hex(24)
    connection.execute(
        insert(api_key).values(id=key_id, secret_hash=_digest(secret), role=role, tenant=tenant, created_at=time.time())
    )
    return f"mr-{role}-{key_id}-{secret}"


def check_key(connection: Connection, authorization: str | None) -> Caller:
    """Who is behind an `Authorization: Bearer ...` header.

    Raises:
        Unauthorized: no key, or one that we do not know.
    """
    scheme, _, text = (authorization or "").partition(" ")
    parts = text.strip().split("-")
    if scheme.lower() != "bearer" or len(parts) != _PARTS or parts[0] != "mr":
        raise Unauthorized("send your Millrace key as `Authorization: Bearer mr-...`; `millrace up` printed it")
    row = connection.execute(select(api_key).where(api_key.c.id == parts[2])).one_or_none()
    if row is None or not hmac.compare_digest(row.secret_hash, _digest(parts[3])):
        raise Unauthorized("this key is not known here; `millrace up` printed the key of this home")
    return Caller(row.id, row.role, row.tenant)


def _digest(secret: str) -> str:
    # The secret has 192 random bits: a plain hash is enough, and cheap on every request.
    return hashlib.sha256(secret.encode()).hexdigest()
