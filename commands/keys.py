"""`millrace keys`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from contracts.errors import InvalidSettings
from contracts.keys import Role, create_key
from contracts.settings import load_settings


def run_keys(home: Path, role: str, tenant: str) -> None:
    """Make a key and print it."""
    if role not in {"app", "operator"}:
        raise InvalidSettings(f"--role is app or operator, not {role!r}")
    with load_settings(home).database().transaction() as connection:
        print(create_key(connection, cast("Role", role), tenant))
