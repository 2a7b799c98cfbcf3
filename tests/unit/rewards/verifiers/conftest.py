from __future__ import annotations

import pytest

from rewards.verifiers import referee

WORKED_SECONDS = 0.02
"""Of a processor: whoever works gets that much before a deadline on any machine, whoever sleeps does not."""


@pytest.fixture(autouse=True)
def fed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is so busy that a worker which works counts as starved."""
    monkeypatch.setattr(referee, "STARVED_SECONDS", WORKED_SECONDS)
