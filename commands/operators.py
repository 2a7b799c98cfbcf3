"""What all decisions of an operator on the command line share."""

from __future__ import annotations

from contracts.assignments import MOVED
from runtime.settings import Settings

WRITER = "operator"
"""The name of the command line in the history of the arms."""


def wake_followers(settings: Settings) -> None:
    """Tell replicas and gateways that the arms moved."""
    bell = settings.replica_links().bell
    bell.ring(MOVED)
    bell.close()
