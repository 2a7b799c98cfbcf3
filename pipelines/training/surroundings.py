"""What a trainer works with: settings, servers, keys and clocks; and start-up work that is retried until the servers answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from contracts import assignments
from contracts.errors import Unavailable
from contracts.faults import FaultPoint, no_fault
from pipelines.training.repository import CONSUMER_GROUP
from runtime.metrics import WAITS
from runtime.operations import step_done
from runtime.worker import RETRY_SECONDS

if TYPE_CHECKING:
    import threading

    from contracts.assignments import Assignment
    from contracts.event_log import EventLog
    from pipelines.training.settings import TrainingSettings
    from runtime.database import Database
    from runtime.lease import Lease
    from runtime.settings import Settings
    from weights.stores.store import WeightStore
    from weights.versions.signing import Keyring, Signer

log = structlog.get_logger()

Clock = Callable[[], float]
Result = TypeVar("Result")


def rising() -> float:
    """Monotonic seconds, including time asleep where the system supports it. Meaningful only inside this process."""
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class Surroundings(NamedTuple):
    """What a trainer works with. The lease says which policy is trained."""

    settings: Settings
    training: TrainingSettings
    database: Database
    lease: Lease
    event_log: EventLog
    store: WeightStore
    signer: Signer | None = None
    keyring: Keyring | None = None
    clock: Clock = time.time
    """UTC epoch seconds."""
    monotonic: Clock = rising
    """Seconds for timers."""
    fault: FaultPoint = no_fault

    def arms(self) -> dict[str, Assignment]:
        """The assignments of the lease's policy, read now."""
        with self.database.snapshot() as connection:
            return assignments.read(connection, self.lease.policy)


def wall_for_ages(wall: Clock, monotonic: Clock) -> Clock:
    """A clock in UTC epoch seconds that ages are computed with.

    It follows the wall clock backwards, but moves forwards only as fast as time passes: a clock that jumps ahead would make
    samples stale at once, and stale is final. A clock that is behind only makes samples look younger, which is less harmful.
    """
    began_wall, began = wall(), monotonic()
    return lambda: min(wall(), began_wall + monotonic() - began)


def began_before(now: float, seconds_ago: float, at_most: float) -> float:
    """When a timer from before a restart began, on the monotonic clock: at most its length ago, and not in the future."""
    return now - max(0.0, min(seconds_ago, at_most))


def retried(stop: threading.Event, act: Callable[[], Result], *, retry_seconds: float = RETRY_SECONDS) -> Result | None:
    """The result of `act`, retried while it raises Unavailable, with the log lines and metrics of a worker; None if `stop` is set first."""
    while True:
        try:
            return act()
        except Unavailable as error:
            step_done()
            WAITS.labels(CONSUMER_GROUP).inc()
            log.warning("waiting", process=CONSUMER_GROUP, reason=error.message)
        if stop.wait(retry_seconds):
            return None
