"""Which record of a batch is to blame for an exception: found by halving, and whose fault an exception is at all.

In: the parts of a batch in the order in which they were read, and what is to be done with them. Out: each was done with
the others that are sound, or was given up alone. Waits for: nothing.

Halves are done one after the other, so that what comes later in a partition is never done before what comes earlier.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import structlog
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from contracts.errors import (
    InvalidSettings,
    InvalidTask,
    MillraceError,
    NewerSchema,
    PositionLost,
    StaleWrite,
    TooManyDeadLetters,
    Unavailable,
)

Part = TypeVar("Part")

_CONDITIONS = (
    StaleWrite, Unavailable, NewerSchema, TooManyDeadLetters, PositionLost, InvalidSettings, InvalidTask,
)  # fmt: skip
"""Of a process or of what it stands on: no other record would fare better."""
_SHORT_OF = frozenset((
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO, errno.EROFS,
))  # fmt: skip
"""What a machine runs out of."""
_DATA_CLASSES = ("22", "23", "54")
"""Of SQLSTATE: data exception, constraint, a value larger than the server can take."""

log = structlog.get_logger()


class Blamed(Exception):
    """The records in hand are the reason of `__cause__`; caught by whoever halves them."""


@contextmanager
def blaming_records() -> Iterator[None]:
    """What is raised inside becomes `Blamed` if a record can be its reason."""
    try:
        yield
    except Exception as error:
        if not is_of_a_record(error):
            raise
        raise Blamed from error


def is_of_a_record(error: Exception) -> bool:
    """True if an exception is the fault of a record, or of the code that handles it; false for what others would meet too."""
    if isinstance(error, MillraceError):
        return not isinstance(error, _CONDITIONS)
    if isinstance(error, SQLAlchemyError):
        return _is_of_data(error)
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in _SHORT_OF
    return not isinstance(error, MemoryError)


def bisect(
    parts: Sequence[Part],
    act: Callable[[Sequence[Part]], None],
    give_up: Callable[[Part, BaseException], None],
    *,
    was_tried: bool = False,
) -> None:
    """Do `act` with all parts, where that fails for their sake with halves of them, and give up what fails alone.

    Args:
        parts: in their order.
        act: all of them or none; raises `Blamed`. One part that fails is tried once more, unless it failed among others.
        give_up: what is done with a part that fails alone.
        was_tried: whether they failed before.
    """
    if not parts:
        return
    try:
        act(parts)
    except Blamed as blamed:
        reason = blamed.__cause__ or blamed
    else:
        return
    if len(parts) == 1 and was_tried:
        give_up(parts[0], reason)
        return
    log.warning("records failed, looking for the one", num=len(parts), reason=repr(reason)[:200])
    half = len(parts) // 2
    for some in (parts[:half], parts[half:]):
        bisect(some, act, give_up, was_tried=True)


def _is_of_data(error: SQLAlchemyError) -> bool:
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        return isinstance(error, DataError | IntegrityError) or state.startswith(_DATA_CLASSES)
    return isinstance(error, StatementError)  # a parameter that the driver could not bind
