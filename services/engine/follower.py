"""Follows the assignments: whatever version an arm is pointed at, the engine comes to hold.

Flows in: arm → version, its root and its run, read every tenth of a second, and at once when woken. Flows out: updates of the engine. Waits
for: nothing; a version that cannot be staged leaves the old one serving, is named in /state, and is tried again, ever less often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import NamedTuple

import msgspec
import structlog

from contracts.errors import InvalidSettings, MillraceError, Unavailable
from runtime.operations import step_done
from services.engine.engine import ARMS, Engine

_POLL_SECONDS = 0.1
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 30.0
_ASSIGNMENTS = "assignments"
_log = structlog.get_logger(__name__)


class AssignedVersion(NamedTuple):
    """What an arm is pointed at. `version` None: leave it as it is; `root` None: whatever the version's weights add up to."""

    version: int | None
    root: str | None = None
    run: str | None = None
    """The run that the version is of; None: that of the engine's home."""


class UpdateProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A version that could not be brought in, or assignments that could not be read (`version` None)."""

    version: int | None
    code: str
    message: str
    attempts: int
    retry_at: float
    """On the clock of `time.monotonic`."""


def due(wanted: int | None, held: int | None, problem: UpdateProblem | None, now: float) -> bool:
    """True if an arm should be brought to the version it is pointed at, now."""
    if wanted is None or wanted == held:
        return False
    return problem is None or problem.version != wanted or now >= problem.retry_at


def next_problem(
    previous: UpdateProblem | None, version: int | None, error: MillraceError, now: float
) -> UpdateProblem:
    """What is remembered of a failure; the wait doubles while the same version fails."""
    attempts = previous.attempts + 1 if previous is not None and previous.version == version else 1
    wait = min(_FIRST_RETRY_SECONDS * 2.0 ** (attempts - 1), _LAST_RETRY_SECONDS)
    return UpdateProblem(
        version=version, code=error.code, message=error.message, attempts=attempts, retry_at=now + wait
    )


class Follower:
    """See the module.

    Args:
        engine: what is brought along.
        read_assignments: arm → what it is pointed at now; arms other than the engine's are ignored.
        on_exit: called if the thread ends by an error; the process should end too.
        poll_seconds: the longest pause between two looks.

    Attributes:
        fatal: why no version can ever be loaded, if that is why it ended.
    """

    def __init__(
        self,
        engine: Engine,
        read_assignments: Callable[[], Mapping[str, AssignedVersion]],
        on_exit: Callable[[], None],
        *,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._engine = engine
        self._read_assignments = read_assignments
        self._on_exit = on_exit
        self._poll_seconds = poll_seconds
        self.fatal: InvalidSettings | None = None
        self._problems: dict[str, UpdateProblem] = {}
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-follower", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End after the update that is under way, if any."""
        self._stopping.set()
        self._awake.set()
        self._thread.join()

    def wake(self) -> None:
        """An arm was moved: read now. Callable from any thread."""
        self._awake.set()

    def problems(self) -> dict[str, UpdateProblem]:
        """What cannot be brought in, by arm; `assignments` if they cannot be read."""
        return dict(self._problems)

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
        for arm in ARMS:
            to, held = wanted.get(arm, AssignedVersion(None)), self._engine.versions().get(arm)
            version = to.version
            if version is not None and due(version, held, self._problems.get(arm), now):
                self._bring(arm, version, to, now)
            elif version == held:
                self._problems.pop(arm, None)

    def _bring(self, arm: str, version: int, to: AssignedVersion, now: float) -> None:
        try:
            self._engine.update(arm, version, to.root, to.run)
        except MillraceError as error:
            if isinstance(error, InvalidSettings) and not self._engine.versions():
                raise  # nothing serves yet, and starting again would not help
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
