"""What `millrace doctor` found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from contracts.errors import MillraceError


class Finding(NamedTuple):
    """The result of one check. `needed`: Millrace cannot run without it."""

    name: str
    good: bool
    needed: bool
    says: str


def missing(name: str, says: str) -> Finding:
    """Something without which Millrace cannot run."""
    return Finding(name, False, True, says)


def note(name: str, says: str) -> Finding:
    """Something that is wrong, and with which Millrace runs."""
    return Finding(name, False, False, says)


def checked(name: str, check: Callable[[], Finding], *, needed: bool = True) -> Finding:
    """The finding of a check. If the check fails, its error is the finding."""
    try:
        return check()
    except MillraceError as error:
        return Finding(name, False, needed, error.message)
    except OSError as error:
        return Finding(name, False, needed, f"{error}: see that this user may read and write there")
