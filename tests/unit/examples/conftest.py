from __future__ import annotations

from tests.unit.commands.conftest import home

__all__ = ["home"]
