"""Which record of a batch is to blame for an exception: found by splitting, and whose fault an exception is at all.

In: the parts of a batch in the order in which they were read, and what is to be done with them. Out: each was done with
the others that are sound, or was given up alone. Waits for: nothing.

Pieces are done one after the other, so that what comes later in a partition is never done before what comes earlier. Where the
traceback says which part was in hand, three pieces do: those before it, it, and those after. Else halves; where the first of them is
sound the culprit is in the second, which is not tried as a whole.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
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
    parts: Sequence[Part],
    act: Callable[[Sequence[Part]], None],
    give_up: Callable[[Part, BaseException], None],
    reason: BaseException,
    in_hand: Callable[[BaseException, Sequence[Part]], int | None] = lambda _reason, _parts: None,
) -> None:
    """Do `act` with pieces of what failed as a whole, where that fails with pieces of those, and give up what fails alone.

    Args:
        parts: in their order. One alone is tried once more.
        act: does all that it is given or nothing; raises `Blamed`.
        give_up: what is done with a part that fails alone.
        reason: why they failed.
        in_hand: the place of the part that seems to be the reason, if it can be told. It may err: that costs time.
    """
    place = in_hand(reason, parts) if len(parts) > 1 else 0
    cuts = (len(parts) // 2,) if place is None else (place, place + 1)
    pieces = [parts[start:end] for start, end in pairwise((0, *cuts, len(parts))) if end > start]
    is_sound = True
    for number, some in enumerate(pieces):
        if place is None and is_sound and number == len(pieces) - 1:
            bisect(some, act, give_up, reason, in_hand)  # the culprit is here
            return
        error = _failure(act, some)
        is_sound = is_sound and error is None
        if error is not None and len(some) == 1:
            give_up(some[0], error)
        elif error is not None:
            bisect(some, act, give_up, error, in_hand)


def in_hand_of(reason: BaseException, items: Sequence[object]) -> int | None:
    """Which of these objects the innermost frame of a traceback holds that holds one of them; None if none does."""
    places = {id(item): place for place, item in enumerate(items)}
    found = None
    step = reason.__traceback__
    while step is not None:
        held = {places[id(value)] for value in step.tb_frame.f_locals.values() if id(value) in places}
        found = held.pop() if len(held) == 1 else found
        step = step.tb_next
    return found


def _failure(act: Callable[[Sequence[Part]], None], parts: Sequence[Part]) -> BaseException | None:
    try:
        act(parts)
    except Blamed as blamed:
        return blamed.__cause__ or blamed
    return None


def _is_of_data(error: SQLAlchemyError) -> bool:
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        return isinstance(error, DataError | IntegrityError) or state.startswith(_DATA_CLASSES)
    return isinstance(error, StatementError)  # a parameter that the driver could not bind
