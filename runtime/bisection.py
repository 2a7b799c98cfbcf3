"""Find the record that makes a batch fail, by splitting the batch; and tell faults of a record from faults of the environment.

Pieces are handled in order, so a later record of a partition is never handled before an earlier one. If the traceback shows which part
was being handled, three pieces are enough: the parts before it, the part itself, and the parts after it. Otherwise the batch is halved;
if the first half succeeds, the bad record is in the second half, which is split without another attempt.
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
"""Faults of the process or its environment: every record would fail."""
_EXHAUSTED = frozenset((
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO, errno.EROFS,
))  # fmt: skip
_DATA_CLASSES = ("22", "23", "54")
"""SQLSTATE classes: data exception, constraint violation, program limit exceeded."""


class Blamed(Exception):
    """The records being handled caused `__cause__`. The caller that splits the batch catches this."""


@contextmanager
def blaming_records() -> Iterator[None]:
    """Turn exceptions that a record can cause into `Blamed`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Blamed) or not is_of_a_record(error):
            raise
        raise Blamed from error


def is_of_a_record(error: Exception) -> bool:
    """True if a record, or the code that handles it, caused an exception; false if any other record would meet it too."""
    if isinstance(error, MillraceError):
        return not isinstance(error, _CONDITIONS)
    if isinstance(error, SQLAlchemyError):
        return _is_of_data(error)
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in _EXHAUSTED
    return not isinstance(error, MemoryError)


def bisect(
    parts: Sequence[Part],
    act: Callable[[Sequence[Part]], None],
    give_up: Callable[[Part, BaseException], None],
    reason: BaseException,
    in_hand: Callable[[BaseException, Sequence[Part]], int | None] = lambda _reason, _parts: None,
) -> None:
    """Call `act` with pieces of a batch that failed as a whole, split pieces that fail, and give up parts that fail alone.

    `act` handles all parts that it gets or none, and raises `Blamed`. A single part is tried once more. `in_hand`: the index of
    the part that seems to be the reason, or None; a wrong guess only costs time.
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
    """Index of the object that was being handled: the one in the innermost frame that holds exactly one of them. Else None."""
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
