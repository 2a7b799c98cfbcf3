"""Announces this engine in the table `engine_replica`, so that inference finds it.

In: the engine's state, looked at ten times a second. Out: the replica's row, every second and at once after a change. Waits for: the
database; while it is away, the engine serves on and the row is written later.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from time import monotonic

import structlog

from contracts.engines import EngineReplica, LoadProblem
from contracts.errors import InvalidSettings, NameTaken, Unavailable
from engines.registry import OWN
from runtime.engine_rows import EngineRows
from runtime.listening import replica_number
from runtime.settings import Settings
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.settings import EngineSettings

_RENEW_SECONDS, _LOOK_SECONDS = 1.0, 0.1
_MOST_OF_HOST = 58  # a name has 64 characters at most
_ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 compared, not bound
_log = structlog.get_logger(__name__)


class EngineAnnouncer:
    """See the module. `row` describes the engine now; `on_exit` is called if another replica has the name: `fatal`, then, says so."""

    def __init__(
        self, row: Callable[[], EngineReplica], rows: EngineRows, on_exit: Callable[[], None] = lambda: None
    ) -> None:
        self._row = row
        self._rows = rows
        self._on_exit = on_exit
        self.fatal: NameTaken | None = None
        self._told: EngineReplica | None = None
        self._told_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-announcer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the row: the replica ends in order."""
        self._stopping.set()
        self._thread.join()
        if self._told is not None:
            try:
                self._rows.withdraw(self._told.name)
            except Unavailable as error:
                _log.warning("engine_row_not_removed", error=error.message)

    def step(self, now: float) -> None:
        """Write the row if it changed, or if it was written a second ago. `now`: on the clock of `time.monotonic`."""
        row = self._row()
        if row == self._told and now - self._told_at < _RENEW_SECONDS:
            return
        try:
            self._rows.announce(row)
        except Unavailable as error:
            _log.warning("engine_row_not_written", error=error.message)
        except NameTaken as error:
            _log.error("engine_name_taken", error=error.message)
            self.fatal = error
            self._stopping.set()
            self._on_exit()
        self._told, self._told_at = row, now

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self.step(monotonic())


def describe(engine: Engine, *, name: str, url: str, region: str, is_ending: bool = False) -> EngineReplica:
    """The row of an engine as it is now; `is_ending`: it finishes its requests and takes no more. The writer sets `seen_at`."""
    status, facts = engine.health()
    return EngineReplica(
        name=name,
        policy=engine.policy,
        url=url,
        kind=OWN,
        region=region,
        status="ending" if is_ending else status,
        slots=facts["versions"],
        abilities=engine.abilities,
        instance=engine.instance,
        engine=facts["engine"],
        dtype=facts["dtype"] or "",
        seen_at=0.0,
    )


def problems_of(follower: Follower) -> dict[str, LoadProblem]:
    """Arm to why its assigned version could not be loaded, as the row says it."""
    return {
        arm: LoadProblem(version=problem.version, code=problem.code, message=problem.message, attempts=problem.attempts)
        for arm, problem in follower.problems().items()
        if problem.version is not None
    }


def address_of(settings: Settings, own: EngineSettings, listening: socket.socket) -> tuple[str, str]:
    """Name and URL of a replica that listens on a socket. Raises InvalidSettings if several have one URL."""
    port = listening.getsockname()[1]
    host = socket.gethostname() if settings.engine_host in _ANYWHERE else settings.engine_host
    number = replica_number()
    if number > 1 and own.url is not None:
        raise InvalidSettings("[engine] url is the address of one replica; with --engines, leave it out")
    name = own.name if number == 1 else own.name and f"{own.name}-{number}"
    return name or f"{socket.gethostname()[:_MOST_OF_HOST]}-{port}", own.url or f"http://{host}:{port}"
