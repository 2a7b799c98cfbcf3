"""Which record of a batch is to blame for an exception: found by splitting, and whose fault an exception is at all.

In: the parts of a batch in the order in which they were read, and what is to be done with them. Out: each was done with
the others that are sound, or was given up alone. Waits for: nothing.

Pieces are done one after the other, so that what comes later in a partition is never done before what comes earlier. There
are eight of them, not two: what is sound in a batch of 500 with a few culprits is then handled about three times, not five.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

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
NUM_PIECES = 8
_DATA_CLASSES = ("22", "23", "54")
"""Of SQLSTATE: data exception, constraint, a value larger than the server can take."""


class Blamed(Exception):
    """The records in hand are the reason of `__cause__`; caught by whoever splits them."""


@contextmanager
def blaming_records() -> Iterator[None]:
    """What is raised inside becomes `Blamed` if a record can be its reason."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Blamed) or not is_of_a_record(error):
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
    parts: Sequence[Part], act: Callable[[Sequence[Part]], None], give_up: Callable[[Part, BaseException], None]
) -> None:
    """Do `act` with pieces of what failed as a whole, where that fails with pieces of those, and give up what fails alone.

    Args:
        parts: in their order. One alone is tried once more.
        act: does all that it is given or nothing; raises `Blamed`.
        give_up: what is done with a part that fails alone.
    """
    size = -(-len(parts) // NUM_PIECES)
    for some in [parts[start : start + size] for start in range(0, len(parts), size)]:
        try:
            act(some)
        except Blamed as blamed:
            reason = blamed.__cause__ or blamed
        else:
            continue
        if len(some) > 1:
            bisect(some, act, give_up)
        else:
            give_up(some[0], reason)


def _is_of_data(error: SQLAlchemyError) -> bool:
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        return isinstance(error, DataError | IntegrityError) or state.startswith(_DATA_CLASSES)
    return isinstance(error, StatementError)  # a parameter that the driver could not bind
