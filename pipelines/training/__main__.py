"""The process `training`: first the lease, then everything that takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.lease import Lease
from contracts.settings import load_section, load_settings
from pipelines.training import repository
from pipelines.training.checkpoint_names import highest_epoch
from pipelines.training.settings import TrainingSettings

if TYPE_CHECKING:
    import threading
    from pathlib import Path

_NO_EPOCH = 2**31 - 1


def main(home: Path, stop: threading.Event) -> None:
    """Learn until `stop` is set.

    Raises:
        LeaseHeld: another trainer of this policy is at work; nothing was touched.
        LeaseLost: one took over, because this process did not get round for too long.
    """
    settings = load_settings(home)
    lifetime = load_section(home, "training", TrainingSettings).lease_seconds
    database = settings.database()
    with database.snapshot() as connection:
        known = repository.highest_epoch(connection, settings.policy, before=_NO_EPOCH)
    floor = max(known, highest_epoch(settings.checkpoints))
    lease = Lease.acquire(database, settings.policy, floor=floor, lifetime=lifetime)
    with lease.kept_alive():
        # torch takes seconds to load, and who is refused should hear it at once.
        from pipelines.training.process import learn  # noqa: PLC0415

        learn(settings, database, lease, stop)
