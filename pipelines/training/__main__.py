"""The process `training`: take the lease first, then start the slow parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.training import repository
from pipelines.training.checkpoints.checkpoint_names import highest_epoch
from pipelines.training.settings import TrainingSettings
from pipelines.training.surroundings import retried
from runtime.lease import Lease
from runtime.settings import load_section, load_settings

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from pipelines.training.samples.lost_positions import SkipTo
    from runtime.database import Database
    from runtime.settings import Settings

_NO_EPOCH = 2**31 - 1


def main(home: Path, stop: threading.Event, start_from: SkipTo | None = None) -> None:
    """Learn until `stop` is set; with `start_from`, only skip records and exit.

    Raises LeaseHeld: another trainer of this policy is running; nothing was changed. LeaseLost: another trainer took
    over, because this process did not renew its lease in time.
    """
    settings = load_settings(home)
    lifetime = load_section(home, "training", TrainingSettings).lease_seconds
    database = settings.database()
    lease = retried(stop, lambda: take_lease(settings, database, lifetime))
    if lease is None:
        return
    with lease.kept_alive():
        # Importing torch takes seconds; a process that does not get the lease should fail at once.
        from pipelines.training.process import learn, skip  # noqa: PLC0415

        if start_from is None:
            learn(settings, database, lease, stop)
        else:
            skip(settings, database, lease, stop, start_from)


def take_lease(settings: Settings, database: Database, lifetime: float) -> Lease:
    """The lease of the settings' policy. `lifetime`: seconds. Raises LeaseHeld: another trainer is running; Unavailable."""
    with database.snapshot() as connection:
        known = repository.highest_epoch(connection, settings.policy, before=_NO_EPOCH)
    floor = max(known, highest_epoch(settings.checkpoints))
    return Lease.acquire(database, settings.policy, floor=floor, lifetime=lifetime)
