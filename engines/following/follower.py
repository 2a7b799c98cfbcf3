"""Brings one server of another project to the version that its slot is assigned, and announces it.

In: the assignment of an arm. Out: the server's weights, a row in `engine_replica` every second. Waits for: the server, the store.

A version is fetched, verified and staged while the server goes on. If a swap breaks off in the middle, the server is paused with
mixed weights: its row says `failed`, so it gets no requests, and a whole version is written at once, the new one or else the one
before. If neither can be written, the server is started again. After a restart of this process the server is found and goes on.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from contracts.assignments import Assignment
from contracts.engines import EngineReplica, LoadProblem
from contracts.errors import InvalidSettings, MillraceError, Unavailable
from engines.following.driver import EngineDriver, HeldVersions, ServerFacts, VersionFile, abilities

_ASK_SECONDS = 10.0
"""How often a server that serves what it should is asked what it holds: each question wakes its workers."""
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 30.0
_log = structlog.get_logger(__name__)


class ManagedServer(Protocol):
    """A server's process, or one that somebody else runs."""

    @property
    def address(self) -> tuple[str, str] | None:
        """(URL, instance) of the running process; None if it ended."""

    def start(self) -> object:
        """Start it again."""

    def renew(self) -> None:
        """Say that it is still followed."""

    def end(self) -> None:
        """End it."""


class GivenServer:
    """One that somebody else runs: it is neither started nor ended."""

    def __init__(self, url: str) -> None:
        self.address: tuple[str, str] | None = (url, "given")

    def start(self) -> None:
        """Does nothing, as `renew` and `end`."""

    renew = end = start


DriverType = TypeVar("DriverType", bound=EngineDriver)


class ServerFollower(ABC, Generic[DriverType]):
    """Follows one server. `step` belongs to one thread; any may read `row`, which is what the replica announces now.

    Args:
        row: what the replica announces while it is down: names, region, kind, dtype; `slots` has its arms.
        server: its process.
        connect: makes a driver for a URL.
        check: raises InvalidSettings for a server that is not one for this policy, by its facts and its URL.
        file_of: see `HostCopy.file_of`.
        folder: where the server's files are linked.
        keep_swap: see `FollowingRepository.keep_swap`.
        assigned: reads arm → assignment.
    """

    def __init__(
        self,
        row: EngineReplica,
        *,
        server: ManagedServer,
        connect: Callable[[str], DriverType],
        check: Callable[[ServerFacts, str], None],
        file_of: Callable[[int, str | None, str | None, Path], VersionFile],
        folder: Path,
        keep_swap: Callable[[str, str, int, float, float], None],
        assigned: Callable[[], Mapping[str, Assignment]],
    ) -> None:
        self.row = row
        self.serves = threading.Event()
        """Set once a version is served."""
        self.server = server
        self._connect, self._check = connect, check
        self._file_of, self._folder = file_of, folder
        self._keep_swap, self._assigned = keep_swap, assigned
        self._driver: DriverType | None = None
        self.facts: ServerFacts | None = None
        """How the server was started, once it is known."""

    @abstractmethod
    def step(self, now: float) -> None:
        """One look at the server and at the assignments. Failures are logged and tried again with growing pauses."""

    @abstractmethod
    def _tell(self, status: str, version: int | None) -> None:
        """Let the row say this of the server; `version`: of every slot."""

    def _connected(self) -> DriverType:
        """A driver of the server, which is started if it ended. Raises Unavailable; InvalidSettings: it is not one for this policy."""
        address = self.server.address
        if address is None:
            self._lost()
            self.server.start()
            address = self.server.address
        if address is None:
            raise Unavailable(f"{self.row.name} does not start")
        url, instance = address
        if self._driver is None or self.row.instance != instance:
            self._driver = None
            self.row = self.row._replace(url=url, instance=instance)
            driver = self._connect(url)
            self.facts = driver.facts()
            self._check(self.facts, url)
            self.row = self.row._replace(abilities=abilities(self.facts), dtype=self.facts.dtype)
            self._driver = driver
        return self._driver

    def _lost(self) -> None:
        """The server starts, or is away; it may come back as another."""
        self._tell("restarting" if self.serves.is_set() else "starting", None)
        self._driver = None


class LoadAttempts(NamedTuple):
    """Of bringing a version that failed."""

    version: int | None = None
    number: int = 0
    not_before: float = 0.0

    def failed(self, version: int | None, now: float) -> LoadAttempts:
        """One more for a version; the pause before the next one grows."""
        number = self.number + 1 if self.version == version else 1
        pause = min(_FIRST_RETRY_SECONDS * 2.0 ** (number - 1), _LAST_RETRY_SECONDS)
        return LoadAttempts(version, number, now + pause)

    def problem(self, error: MillraceError) -> LoadProblem:
        """What a row says of them."""
        return LoadProblem(version=int(self.version or 0), code=error.code, message=error.message, attempts=self.number)


def is_away(error: MillraceError) -> bool:
    """True if a server did not answer: it starts, or it is away."""
    return error.facts.get("url") is not None and error.facts.get("status") is None


class SlotFollower(ServerFollower[EngineDriver]):
    """See the module."""

    def __init__(self, row: EngineReplica, **parts: Any) -> None:
        super().__init__(row, **parts)
        (self.arm,) = row.slots
        self._before: tuple[Assignment, VersionFile] | None = None
        self._failed = LoadAttempts()
        self._settled: Assignment | None = None
        """The assignment that the server was seen to serve."""
        self._asked_at = 0.0

    def step(self, now: float) -> None:
        """See `ServerFollower`."""
        version: int | None = None
        try:
            wanted = self._assigned().get(self.arm)
            version = wanted.version if wanted is not None else None
            if self._driver is None and self._failed.version == version is not None and now < self._failed.not_before:
                return
            known, driver = self._driver, self._connected()
            if driver is known and wanted == self._settled and now - self._asked_at < _ASK_SECONDS:
                driver.check()
                return
            self._settled, self._asked_at = None, now
            held = driver.held()
            if wanted is not None and wanted.version is not None:
                self._follow(driver, held, wanted, now)
            else:
                self._tell("serving" if held.is_whole else "starting", held.version if held.is_whole else None)
        except MillraceError as error:
            self._note(version, error, now)

    def _follow(self, driver: EngineDriver, held: HeldVersions, wanted: Assignment, now: float) -> None:
        if held.is_whole and held.version == wanted.version and wanted.root in {None, held.root}:
            if driver.is_paused():  # the one that paused it was killed
                driver.resume()
            self._failed, self._settled = LoadAttempts(), wanted
            self._tell("serving", held.version)
            return
        if held.is_whole and self.row.status != "serving":
            self._tell("serving", held.version)
        if self._failed.version == wanted.version and now < self._failed.not_before:
            return
        self._bring(driver, held, wanted)
        self._failed = LoadAttempts()

    def _bring(self, driver: EngineDriver, held: HeldVersions, wanted: Assignment) -> None:
        version = int(wanted.version or 0)
        begun = time.monotonic()
        target = self._file_of(version, wanted.root, wanted.run, self._folder)
        base = VersionFile(int(held.version or 0), str(held.root), target.path) if held.is_whole else None
        driver.stage(target, base.root if base else None)
        staged = time.monotonic()
        try:
            pause = driver.push(target, base)
        except Unavailable as error:
            if not error.facts.get("mixed"):
                raise
            self._tell("failed", None)
            _log.warning("engine_mixed", name=self.row.name, version=version, error=error.message)
            pause = self._heal(driver, target, error)
        if self.serves.is_set():
            self._keep_swap(self.row.name, self.arm, version, staged - begun, pause)
        _log.info("engine_swapped", name=self.row.name, version=version, pause_seconds=round(pause, 4))
        self._before = (wanted, target)
        self._tell("serving", version)

    def _heal(self, driver: EngineDriver, target: VersionFile, error: Unavailable) -> float:
        """Write the target whole; else the version before, and raise; else end the server, and raise."""
        try:
            driver.stage(target, None)
            return driver.push(target, None)
        except MillraceError as again:
            _log.warning("engine_not_healed", name=self.row.name, version=target.version, error=again.message)
        try:
            if self._before is None:
                raise error
            assignment, file = self._before
            file = self._file_of(file.version, assignment.root, assignment.run, self._folder)
            driver.stage(file, None)
            driver.push(file, None)
            self._tell("serving", file.version)
        except MillraceError:
            self.server.end()
            self._tell("restarting", None)
        raise error

    def _note(self, version: int | None, error: MillraceError, now: float) -> None:
        self._settled = None
        if is_away(error):
            self._lost()  # the next look is soon
            return
        if isinstance(error, InvalidSettings):
            self._tell("failed", None)
        self._failed = self._failed.failed(version, now)
        if version is not None:
            self.row = self.row._replace(problems={self.arm: self._failed.problem(error)})
        _log.warning("engine_not_brought", name=self.row.name, version=version, code=error.code, error=error.message)

    def _tell(self, status: str, version: int | None) -> None:
        self.row = self.row._replace(status=status, slots={self.arm: version})
        if self._failed.version is None:
            self.row = self.row._replace(problems={})
        if status == "serving" and version is not None:
            self.serves.set()
