"""The publisher's calls outside the step loop: one at a time, in a thread of their own.

In: a version that was cut, an arm. Out: the effects of `Publisher`; an error of a call is raised where the next one is asked for.
Waits for: nothing, except in `wait`. A call that finds another one running does nothing: the next turn asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

    from contracts.assignments import Assignment
    from pipelines.training.versions.publisher import Publisher


class Publishing:
    """One per trainer, in its thread."""

    def __init__(self, publisher: Publisher, executor: Executor) -> None:
        """`executor` has one thread, or runs calls at once."""
        self._publisher, self._executor = publisher, executor
        self._job: Future[object] | None = None

    def is_idle(self) -> bool:
        """True if the last call has ended. Raises what it raised, once."""
        job = self._job
        if job is None:
            return True
        if not job.done():
            return False
        self._job = None
        job.result()
        return True

    def wait(self) -> None:
        """Return when the last call has ended. Raises what it raised."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def send(self, now: float) -> None:
        """Send the version that was cut, if any. `now`: seconds of a monotonic clock."""
        if self.is_idle() and self._publisher.is_due(now):
            self._start(lambda: self._publisher.send(now))

    def maintain(self, live: Assignment | None, now: float) -> None:
        """See `Publisher.maintenance`."""
        if self.is_idle() and (due := self._publisher.maintenance(live, now)):
            self._start(lambda: [job() for job in due])

    def offer(self, version: int, arm: Assignment | None, reason: str) -> None:
        """See `Publisher.offer`."""
        if self.is_idle():
            self._start(lambda: self._publisher.offer(version, arm, reason))

    def _start(self, call: Callable[[], object]) -> None:
        self._job = self._executor.submit(call)
