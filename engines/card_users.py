"""How many users wait for an answer: inference says it, and the trainer that computes on the same card asks before it goes on.

    inference ──▶ <home>/users/<host>-<number>: mark, home, users, time ──▶ trainer

Waits for: nothing. The number is written as a request goes to an engine and as its answer ends, so it is the same for every kind of engine,
and rollouts and questions of the gate are not in it. A file that was not renewed for two seconds is of a process that ended, and counts nobody.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import structlog
from blake3 import blake3
from pydantic import Field, model_validator

from runtime.listening import replica_number
from runtime.settings import Section, Settings, load_section, read_home_settings

FRESH_SECONDS = 2.0
_MARK, _FORM = b"MRUSERS1", struct.Struct("<8s16sqd")
_LONGEST_HOST = 48
_log = structlog.get_logger(__name__)


class GpuSettings(Section):
    """The cards of a home: users and the trainer may share one, or several are moved between them."""

    added_p99_ms: float | None = Field(default=None, gt=0)
    """What a trainer on the same device may add to an answer: it waits for users, and its micro-batches are that short."""
    pool: tuple[int, ...] = ()
    """Cards that `up` moves between engines and the trainer; on a CPU, places for them. Empty: none moves."""
    floor: int = Field(default=1, ge=1)
    """Engine replicas that users always keep."""
    requests_per_card: int = Field(default=32, ge=1)
    """Requests in flight that one replica carries in good time."""

    @model_validator(mode="after")
    def _check_pool(self) -> Self:
        if len(set(self.pool)) < len(self.pool) or min(self.pool, default=0) < 0:
            raise ValueError(f"pool names each card once, by its number from 0: {', '.join(map(str, self.pool))}")
        if self.pool and self.floor >= len(self.pool):
            raise ValueError(
                f"floor = {self.floor} leaves nothing of a pool of {len(self.pool)} cards to move: at most {len(self.pool) - 1}, or leave pool out"
            )
        if self.pool and self.added_p99_ms is not None:
            raise ValueError(
                "added_p99_ms is for users and trainer on one card, and with pool each card has one of them"
            )
        return self


class CardUsers:
    """What one process of inference writes. Belongs to one event loop."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """A file that cannot be made is said once: then the trainer does not wait for these users."""
        self._home, self._clock = _home_of(settings), clock
        self._num, self._file = 0, -1
        name = f"{socket.gethostname()[:_LONGEST_HOST]}-{replica_number()}"
        try:
            (settings.home / "users").mkdir(parents=True, exist_ok=True)
            self._file = os.open(settings.home / "users" / name, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError as error:
            _log.warning("the trainer will not wait for users", reason=str(error))
        self.renew()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """A block in which a user waits."""
        self._num += 1
        self.renew()
        try:
            yield
        finally:
            self._num -= 1
            self.renew()

    def renew(self) -> None:
        """Say the number again, as is needed every `FRESH_SECONDS`."""
        if self._file >= 0:
            with suppress(OSError):  # users are answered all the same
                os.pwrite(self._file, _FORM.pack(_MARK, self._home, self._num, self._clock()), 0)

    def close(self) -> None:
        """Nobody waits here any more."""
        if self._file >= 0:
            self._num = 0
            self.renew()
            os.close(self._file)
            self._file = -1


class WaitingUsers:
    """What the trainer reads."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._home, self._clock = settings.home / "users", _home_of(settings), clock
        self._ignored: set[Path] = set()

    def num(self) -> int:
        """Users who wait now."""
        try:
            return sum(map(self._of, self._folder.iterdir()))
        except OSError:  # nobody has waited yet, or the folder cannot be read: the trainer goes on
            return 0

    def _of(self, file: Path) -> int:
        try:
            with file.open("rb") as content:
                mark, home, num, at = _FORM.unpack(content.read(_FORM.size + 1))
            why = "damaged" if mark != _MARK or num < 0 else "of another home" if home != self._home else ""
        except (OSError, struct.error) as error:
            num, at, why = 0, 0.0, str(error)
        if why and file not in self._ignored:
            self._ignored.add(file)
            _log.warning("a file of waiting users is ignored", file=str(file), reason=why)
        return 0 if why or abs(self._clock() - at) > FRESH_SECONDS else int(num)


def budget_seconds(settings: Settings) -> float | None:
    """How long a micro-batch may take beside users; None: the trainer does not wait for them. Raises InvalidSettings."""
    if read_home_settings(settings.home) is None:
        return None
    given = load_section(settings.home, "gpu", GpuSettings).added_p99_ms
    return None if given is None else given / 1000


def _home_of(settings: Settings) -> bytes:
    return blake3(settings.prefix.encode()).digest(16)
