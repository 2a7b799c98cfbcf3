"""Names that are being deleted: which count as deleted, and how a new reference stops it. `runtime.deletions` does the deletion."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import Connection, and_, delete, select

from contracts.errors import NotFound
from contracts.tables import doomed

Kind = Literal["checkpoint", "chunk", "version"]


def going(connection: Connection, policy: str, kind: Kind) -> set[str]:
    """Names that count as deleted, even if their bytes still exist."""
    statement = select(doomed.c.name).where(doomed.c.policy == policy, doomed.c.kind == kind, doomed.c.going.is_(True))
    return set(connection.execute(statement).scalars())


def refer_to_version(connection: Connection, policy: str, version: int) -> None:
    """Take a version off the deletion list, in the transaction that refers to it. Raises NotFound: its bytes are being removed."""
    its = and_(doomed.c.policy == policy, doomed.c.kind == "version", doomed.c.name == str(version))
    row = connection.execute(select(doomed.c.going).where(its).with_for_update()).one_or_none()
    if row is not None and row.going:
        raise NotFound(
            f"the bytes of {policy} version {version} were removed from the weight store: choose a newer version, or "
            "restore the store from a backup",
            policy=policy,
            version=version,
        )
    connection.execute(delete(doomed).where(its))
