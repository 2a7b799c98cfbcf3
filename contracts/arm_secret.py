"""The secret that keys the draw of arms, so that no client computes which of its names gets which arm.

Every gateway must draw alike, and release repeats the draw, so it stands in the database. A migration makes it, once; it is never
logged, shown or sent.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from contracts.errors import InvalidSettings
from contracts.tables import home_secret

NAME = "arms"


def read_arm_secret(connection: Connection) -> bytes:
    """The secret of this home: 32 random bytes. Raises InvalidSettings: it was deleted, or is no number."""
    found = connection.execute(select(home_secret.c.value).where(home_secret.c.name == NAME)).scalar_one_or_none()
    if found is None:
        raise InvalidSettings(
            f"the table home_secret has no row {NAME!r}, so no arm can be drawn: restore it from a backup, or insert 64 random hex "
            "digits (`openssl rand -hex 32`), which draws every arm anew"
        )
    try:
        return bytes.fromhex(found)
    except ValueError as error:
        raise InvalidSettings(f"the row {NAME!r} of the table home_secret is no 64 hex digits: write such") from error
