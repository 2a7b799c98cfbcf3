"""API keys: `mr-<role>-<id>-<secret>`. Only a hash of the secret is stored; role, tenant and scopes are bound to the key.

The role says who speaks: an app, for its users, or an operator. Scopes say which doors are open. A key may have fewer scopes
than its role allows, and never more.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, Row, insert, select, update

from contracts.errors import Forbidden, InvalidSettings, MissingScope, Unauthorized
from contracts.record_checks import MAX_NAME
from contracts.tables import api_key

Role = Literal["app", "operator"]
Scope = Literal["inference", "feedback", "operator:read", "operator:write"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
ROLE_SCOPES: Mapping[Role, frozenset[Scope]] = MappingProxyType(
    {"app": frozenset(("inference", "feedback")), "operator": frozenset(SCOPES)}
)
"""The most that a key of a role may do, and what it may do unless it was made with less."""
_PARTS = 4


class Caller(NamedTuple):
    """Who makes a request. `expires_at`: UTC epoch seconds; None: never."""

    key_id: str
    role: Role
    tenant: str
    scopes: frozenset[Scope]
    expires_at: float | None = None

    def require(self, scope: Scope) -> None:
        """Raises MissingScope unless the key has this scope."""
        if scope not in self.scopes:
            role = "app" if scope in ROLE_SCOPES["app"] else "operator"
            raise MissingScope(
                f"this needs a key with the scope {scope}, and {self.key_id} has {' '.join(sorted(self.scopes))}; "
                f"make one with: millrace keys api new --role {role} --scopes {scope}",
                scope=scope,
                key=self.key_id,
            )

    def require_operator(self) -> None:
        """Raises Forbidden unless an operator speaks."""
        if self.role != "operator":
            raise Forbidden("this needs an operator key; `millrace keys api new --role operator` makes one")


class NewKey(NamedTuple):
    """What a key is made with. `scopes` None: all of the role; `expires_at`: UTC epoch seconds, None: never."""

    role: Role
    tenant: str = "default"
    scopes: frozenset[Scope] | None = None
    expires_at: float | None = None
    name: str = ""

    def check(self, now: float) -> None:
        """Raises InvalidSettings if no such key can be."""
        if self.role not in ROLE_SCOPES:
            raise InvalidSettings(f"--role is app or operator, not {self.role!r}")
        for option, text, least in (("--tenant", self.tenant, 1), ("--name", self.name, 0)):
            if not least <= len(text) <= MAX_NAME or not (text.isprintable() or not text):
                raise InvalidSettings(f"{option} takes {least} to {MAX_NAME} printable characters, not {len(text)}")
        if self.scopes is not None and not self.scopes:
            raise InvalidSettings(f"--scopes names none; there are {', '.join(sorted(ROLE_SCOPES[self.role]))}")
        if excess := sorted((self.scopes or frozenset()) - ROLE_SCOPES[self.role]):
            allowed = ", ".join(sorted(ROLE_SCOPES[self.role]))
            raise InvalidSettings(
                f"a key of the role {self.role} cannot have {', '.join(excess)}; it can have {allowed}"
            )
        if self.expires_at is not None and self.expires_at <= now:
            raise InvalidSettings("--expires lies in the past: such a key would open nothing")


def create_key(connection: Connection, role: Role, tenant: str = "default") -> str:
    """Make a key with all scopes of its role. The returned text is the only copy of the secret."""
    return make_key(connection, NewKey(role, tenant))


def make_key(connection: Connection, wanted: NewKey) -> str:
    """Make a key. The returned text is the only copy of the secret.

    Raises:
        InvalidSettings: see `NewKey.check`.
    """
    now = time.time()
    wanted.check(now)
    key_id, secret = secrets.token_hex(6), secrets.token_hex(24)
    scopes = ROLE_SCOPES[wanted.role] if wanted.scopes is None else wanted.scopes
    connection.execute(
        insert(api_key).values(
            id=key_id,
            secret_hash=_digest(secret),
            role=wanted.role,
            tenant=wanted.tenant,
            scopes=" ".join(sorted(scopes)),
            name=wanted.name,
            created_at=now,
            expires_at=wanted.expires_at,
        )
    )
    return f"mr-{wanted.role}-{key_id}-{secret}"


def check_key(connection: Connection, authorization: str | None, now: float | None = None) -> Caller:
    """Who is behind an `Authorization: Bearer ...` header. `now`: UTC epoch seconds.

    Raises:
        Unauthorized: no key, or one that we do not know, or that was revoked or has expired.
    """
    scheme, _, text = (authorization or "").partition(" ")
    parts = text.strip().split("-")
    if scheme.lower() != "bearer" or len(parts) != _PARTS or parts[0] != "mr" or not parts[2].isalnum():
        raise Unauthorized("send your Millrace key as `Authorization: Bearer mr-...`; `millrace up` printed it")
    row = connection.execute(select(api_key).where(api_key.c.id == parts[2])).one_or_none()
    if row is None or not hmac.compare_digest(row.secret_hash, _digest(parts[3])):
        raise Unauthorized("this key is not known here; `millrace up` printed the key of this home")
    return caller_of(row, time.time() if now is None else now)


def find_key(connection: Connection, key_id: str, now: float) -> Caller:
    """Whoever holds the key of this id, as it is now: for what was opened with it earlier.

    Raises:
        Unauthorized: it is gone, was revoked or has expired.
    """
    row = connection.execute(select(api_key).where(api_key.c.id == key_id)).one_or_none()
    if row is None:
        raise Unauthorized("the key that this was opened with is gone; sign in with another")
    return caller_of(row, now)


def caller_of(row: Row[Any], now: float) -> Caller:
    """The holder of a key. Raises Unauthorized if it was revoked or has expired."""
    if row.revoked_at is not None:
        raise Unauthorized(f"the key {row.id} was revoked; make another with: millrace keys api new")
    if row.expires_at is not None and row.expires_at <= now:
        raise Unauthorized(f"the key {row.id} has expired; make another with: millrace keys api new")
    # A row that somebody wrote by hand opens no more than its role may.
    scopes = frozenset(row.scopes.split()) & ROLE_SCOPES.get(row.role, frozenset())
    return Caller(row.id, row.role, row.tenant, scopes, row.expires_at)


def list_keys(connection: Connection) -> list[Row[Any]]:
    """Every key ever made, oldest first, without its secret's hash."""
    columns = [column for column in api_key.c if column.name != "secret_hash"]
    return list(connection.execute(select(*columns).order_by(api_key.c.created_at, api_key.c.id)))


def revoke_keys(connection: Connection, key_ids: Collection[str], now: float) -> list[str]:
    """Revoke keys; ids of those that were good until now. The rows stay: what they did is still theirs."""
    statement = update(api_key).where(api_key.c.id.in_(key_ids), api_key.c.revoked_at.is_(None)).values(revoked_at=now)
    return sorted(connection.execute(statement.returning(api_key.c.id)).scalars())


def _digest(secret: str) -> str:
    # The secret has 192 random bits: a plain hash is enough, and cheap on every request.
    return hashlib.sha256(secret.encode()).hexdigest()
