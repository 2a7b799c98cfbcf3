"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stages:
    """Seconds of a step by stage: data, forward, backward, optimizer, and waiting for users. On an accelerator: until the host may go on."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What runs inside belongs to this stage, except for stages inside it."""
        started, before = time.monotonic(), sum(self._seconds.values())
        try:
            yield
        finally:
            inside = sum(self._seconds.values()) - before
            self._seconds[name] += time.monotonic() - started - inside

    def take(self) -> dict[str, float]:
        """The figures since the last call."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return {f"seconds_{name}": value for name, value in seconds.items()}
