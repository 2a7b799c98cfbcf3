"""What all decisions of an operator on the command line share."""

from __future__ import annotations

from typing import get_args

from contracts.assignments import MOVED
from contracts.errors import InvalidValue
from contracts.revocations import Treatment
from runtime.settings import Settings

WRITER = "operator"
"""The name of the command line in the history of the arms."""


def wake_followers(settings: Settings) -> None:
    """Tell replicas and gateways that the arms moved."""
    bell = settings.replica_links().bell
    bell.ring(MOVED)
    bell.close()


def treatment_of(text: str) -> Treatment:
    """The treatment of revoked versions that an option names. Raises InvalidValue: there is no such treatment."""
    for treatment in get_args(Treatment):
        if text == treatment:
            return text  # type: ignore[return-value] # it is one of them
    raise InvalidValue(f"--treatment is {' or '.join(get_args(Treatment))}, not {text!r}", param="treatment")
