"""Rows of a GPU table that do not go well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def hangs(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Has one figure, and then nothing for a long time."""
    yield {"first": 1.0, "tiny": rehearse}
    time.sleep(1000 * seconds)


def breaks(**_: Any) -> Iterator[dict[str, Any]]:
    """Fails after one figure."""
    yield {"first": 1.0}
    raise MemoryError("no room")


def lacks(**_: Any) -> Iterator[dict[str, Any]]:
    """Needs what is not installed."""
    yield import_module("package_that_nobody_has").figures
