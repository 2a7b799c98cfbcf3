"""Follows the assignments: loads the version that an arm is assigned into the engine.

In: arm → version, its root and its run, read every tenth of a second, and at once after `wake`. Out: updates of the engine. Waits
for: nothing. If a version cannot be loaded, the old one keeps serving, /state names the problem, and the version is tried again
with growing delays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic

import msgspec
import structlog

from contracts.assignments import Assignment
from contracts.errors import InvalidSettings, MillraceError, Unavailable
from runtime.metrics import TROUBLE
from runtime.operations import step_done
from services.engine.engine import Engine

_POLL_SECONDS = 0.1
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 30.0
_LAST_LOOK_SECONDS = 2.0
"""Between two tries to read the assignments: a region that was cut off should see soon what is new."""
_ASSIGNMENTS = "assignments"
_log = structlog.get_logger(__name__)


class UpdateProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a version could not be loaded, or the assignments could not be read (`version` None)."""

    version: int | None
    code: str
    message: str
    attempts: int
    retry_at: float
    """On the clock of `time.monotonic`."""


def due(wanted: int, held: int | None, problem: UpdateProblem | None, now: float) -> bool:
    """True if an arm should be brought to its assigned version now."""
    return wanted != held and (problem is None or problem.version != wanted or now >= problem.retry_at)


def next_problem(
    previous: UpdateProblem | None, version: int | None, error: MillraceError, now: float
) -> UpdateProblem:
    """The problem after a failure; the delay doubles while the same version fails."""
    attempts = previous.attempts + 1 if previous is not None and previous.version == version else 1
    last = _LAST_LOOK_SECONDS if version is None else _LAST_RETRY_SECONDS
    wait = min(_FIRST_RETRY_SECONDS * 2.0 ** (attempts - 1), last)
    return UpdateProblem(
        version=version, code=error.code, message=error.message, attempts=attempts, retry_at=now + wait
    )


class Follower:
    """See the module. `on_exit` is called if the thread ends with an error: the process should end too. `fatal` is that error.

    In an assignment that is read, `root` None accepts any checksum of the weights, and `run` None is the engine's own run.
    """

    def __init__(
        self,
        engine: Engine,
        read_assignments: Callable[[], Mapping[str, Assignment]],
        on_exit: Callable[[], None],
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._engine = engine
        self._read_assignments = read_assignments
        self._on_exit = on_exit
        self._poll_seconds = poll_seconds
        self.fatal: InvalidSettings | None = None
        self._problems: dict[str, UpdateProblem] = {}
        for subject in (*engine.slots, _ASSIGNMENTS):
            TROUBLE.labels(f"update of {subject}").set_function(partial(self._is_failing, subject))
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current update, if there is one."""
        self._stopping.set()
        self._awake.set()
        self._thread.join()

    def wake(self) -> None:
        """An assignment changed: read now. Callable from any thread."""
        self._awake.set()

    def problems(self) -> dict[str, UpdateProblem]:
        """The current problems by arm; under `assignments`, that they cannot be read."""
        return dict(self._problems)

    def _is_failing(self, subject: str) -> float:
        return float(subject in self._problems)

    def step(self, now: float) -> None:
        """Read the assignments once and act on them."""
        unread = self._problems.get(_ASSIGNMENTS)
        if unread is not None and now < unread.retry_at:
            return
        try:
            wanted = self._read_assignments()
        except Unavailable as error:
            self._remember(_ASSIGNMENTS, None, error, now)
            return
        self._problems.pop(_ASSIGNMENTS, None)
        for arm in self._engine.slots:
            to, held = wanted.get(arm), self._engine.versions().get(arm)
            version = None if to is None else to.version
            if to is not None and version is not None and due(version, held, self._problems.get(arm), now):
                self._bring(arm, version, to, now)
            elif version == held:
                self._problems.pop(arm, None)

    def _bring(self, arm: str, version: int, to: Assignment, now: float) -> None:
        try:
            self._engine.update(arm, version, to.root, to.run)
        except MillraceError as error:
            if isinstance(error, InvalidSettings) and not self._engine.versions():
                raise  # nothing serves yet, and a restart would not help
            self._remember(arm, version, error, now)
        else:
            self._problems.pop(arm, None)

    def _remember(self, subject: str, version: int | None, error: MillraceError, now: float) -> None:
        self._problems[subject] = next_problem(self._problems.get(subject), version, error, now)
        _log.warning("engine_update_failed", subject=subject, version=version, code=error.code, error=error.message)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step(monotonic())
                step_done()
                self._awake.wait(self._poll_seconds)
                self._awake.clear()
        except InvalidSettings as error:
            self.fatal = error
        finally:
            if not self._stopping.is_set():
                self._on_exit()
