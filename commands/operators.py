"""What all decisions of an operator on the command line share."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from contracts.assignments import MOVED
from contracts.errors import InvalidValue
from contracts.revocations import Treatment
from contracts.rollback_effects import Effects, describe_treatment
from runtime.settings import Settings

WRITER = "operator"
"""The name of the command line in the history of the arms."""


def wake_followers(settings: Settings) -> None:
    """Tell replicas and gateways that the arms moved."""
    bell = settings.replica_links().bell
    bell.ring(MOVED)
    bell.close()


def is_agreed(
    effects: Effects, chosen: Treatment, question: str, *, dry_run: bool, ask: Callable[[str], bool] | None
) -> bool:
    """Print what each treatment of the revoked samples does; True if it is to be done: no dry run, and `ask`, where given, agrees."""
    for offered in get_args(Treatment):
        mark = "*" if offered == chosen else " "
        print(f"{mark} --treatment {offered}: {describe_treatment(offered, effects)}")
    if dry_run:
        print("This was a dry run: nothing was changed.")
        return False
    if ask is not None and not ask(question):
        print("Nothing was changed.")
        return False
    return True


def treatment_of(text: str) -> Treatment:
    """The treatment of revoked versions that an option names. Raises InvalidValue: there is no such treatment."""
    for treatment in get_args(Treatment):
        if text == treatment:
            return text  # type: ignore[return-value] # it is one of them
    raise InvalidValue(f"--treatment is {' or '.join(get_args(Treatment))}, not {text!r}", param="treatment")
