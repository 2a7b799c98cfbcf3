from __future__ import annotations

from tests.unit.rewards.verifiers.conftest import fed

__all__ = ["fed"]
