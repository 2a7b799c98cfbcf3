"""The process `training`: first the lease, then everything that takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.training import repository
from pipelines.training.checkpoint_names import highest_epoch
from pipelines.training.settings import TrainingSettings
from pipelines.training.waiting import retried
from runtime.lease import Lease
from runtime.settings import load_section, load_settings

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from pipelines.training.lost_positions import Where

_NO_EPOCH = 2**31 - 1


def main(home: Path, stop: threading.Event, start_from: Where | None = None) -> None:
    """Learn until `stop` is set; or, with `start_from`, only say where to read on, and what becomes of what is skipped.

    Raises:
        LeaseHeld: another trainer of this policy is at work; nothing was touched.
        LeaseLost: one took over, because this process did not get round for too long.
    """
    settings = load_settings(home)
    lifetime = load_section(home, "training", TrainingSettings).lease_seconds
    database = settings.database()

    def take() -> Lease:
        with database.snapshot() as connection:
            known = repository.highest_epoch(connection, settings.policy, before=_NO_EPOCH)
        floor = max(known, highest_epoch(settings.checkpoints))
        return Lease.acquire(database, settings.policy, floor=floor, lifetime=lifetime)

    lease = retried(stop, take)
    if lease is None:
        return
    with lease.kept_alive():
        # torch takes seconds to load, and who is refused should hear it at once.
        from pipelines.training.process import learn, skip  # noqa: PLC0415

        if start_from is None:
            learn(settings, database, lease, stop)
        else:
            skip(settings, database, lease, stop, start_from)
