"""What a weight store needs from the place that holds its objects: nine operations. A folder, a bucket and a web server have them.

Paths are relative to the root of the store. A write is durable when its operation returns, and it is visible as a whole or not
at all. Every operation raises Unavailable while the place is away, and InvalidSettings if it refuses us.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

REMOTE = r"^(https?|s3)://"
"""A setting that names a store beyond this machine."""


class StoredObject(NamedTuple):
    """An object as the place lists it."""

    path: str
    num_bytes: int
    written_at: float
    """UTC epoch seconds."""
    tag: str
    """Changes whenever the object is replaced."""
    is_file: bool = True
    """False: a link, a folder, a pipe or a device, which somebody put into a folder."""


class Objects(ABC):
    """A place that holds objects. Any thread may call it."""

    place: str
    """What messages call it."""
    connections: int = 1
    """Requests that are worth making at the same time."""
    is_read_only: bool = False
    """True: it can be neither written nor listed."""

    @abstractmethod
    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Write an object unless there is one; False: there is one. Atomic; in a folder only inside a `turn`."""

    @abstractmethod
    def put_if_unchanged(self, path: str, content: bytes, tag: str) -> bool:
        """Replace an object if it still has this tag; False: it does not. Atomic; in a folder only inside a `turn`."""

    @abstractmethod
    def put(self, path: str, content: bytes | memoryview) -> None:
        """Write an object, or replace it."""

    @abstractmethod
    def get(self, path: str, most: int) -> bytes | None:
        """A whole object of at most `most` bytes; None: there is none. Raises WeightsRefused: `too_long`, `not_a_file`."""

    @abstractmethod
    def get_range(self, path: str, start: int, end: int) -> bytes | None:
        """Bytes `start` to `end`, or fewer; None: there is no object. Raises WeightsRefused: `not_a_file`, `wrong_range`."""

    @abstractmethod
    def list_below(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        """Objects below a folder, in any order; `after`: only names directly in it that are not smaller. Raises Unsupported."""

    @abstractmethod
    def head(self, path: str) -> StoredObject | None:
        """An object without its content; None: there is none."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove an object, if there is one."""

    @abstractmethod
    def renew(self, path: str, num_bytes: int) -> bool:
        """True if an object of this size is there, is durable, and is too young to be pruned; False: put it again."""

    def turn(self, folder: str) -> AbstractContextManager[bool]:  # noqa: ARG002 a bucket has no locks
        """Wait until nobody else writes below `folder`. True: nobody else does now; False: this place has no locks."""
        return nullcontext(enter_result=False)

    def close(self) -> None:  # noqa: B027 only some places have connections
        """Close connections."""
