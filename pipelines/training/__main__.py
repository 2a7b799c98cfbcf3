"""The process `training`: take the lease first, then start the slow parts. In a group of several processes rank 0 does, for all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipelines.training import repository
from pipelines.training.checkpoints.checkpoint_names import highest_epoch
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.joining import GroupMember, Pulse, connect, facts_of, join
from pipelines.training.surroundings import retried
from runtime import schema
from runtime.lease import Lease
from runtime.operations import LONGEST_WORK_SECONDS, seconds_since_step, step_done
from runtime.settings import load_section, load_settings

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from pipelines.training.samples.lost_positions import SkipTo
    from pipelines.training.shards.group import Group
    from runtime.database import Database
    from runtime.settings import Settings

_NO_EPOCH = 2**31 - 1


def main(home: Path, stop: threading.Event, start_from: SkipTo | None = None) -> None:
    """Learn until `stop` is set; with `start_from`, only skip records and exit. A rank above 0 works until rank 0 ends.

    Raises LeaseHeld: another trainer of this policy is running; nothing was changed. LeaseLost: another trainer took
    over, because this process did not renew its lease in time. InvalidSettings: a rank does not belong to its group. Unavailable:
    a rank is missing.
    """
    settings, training = load_settings(home), load_section(home, "training", TrainingSettings)
    member = GroupMember.of(os.environ)
    if member is None:
        _train(settings, training, stop, start_from)
        return
    facts = facts_of(schema.release(), {"millrace": settings, "training": training})
    settings = settings.model_copy(update={"device": member.device(settings.device)})
    seconds = training.group_seconds
    words, signs = connect(member, os.environ, seconds)
    join(words, member, facts, seconds)
    # A process alone takes its lease before it imports torch.
    from pipelines.training.process import lend_hands  # noqa: PLC0415 as above
    from pipelines.training.shards.group import Group  # noqa: PLC0415 as above

    group = Group(words, member.rank, member.world, device=settings.device, deadline=seconds)
    with Pulse(signs, member, seconds, _is_moving if member.rank == 0 else _waits).watched():
        if member.rank == 0:
            _train(settings, training, stop, start_from, group)
        else:
            lend_hands(settings, group)


def _is_moving() -> bool:
    """As /health says."""
    return seconds_since_step() < LONGEST_WORK_SECONDS


def _waits() -> bool:
    """A rank above 0 has no loop of its own that could hang: each exchange with rank 0 has a deadline."""
    step_done()
    return True


def _train(
    settings: Settings,
    training: TrainingSettings,
    stop: threading.Event,
    start_from: SkipTo | None,
    group: Group | None = None,
) -> None:
    database = settings.database()
    lease = retried(stop, lambda: take_lease(settings, database, training.lease_seconds))
    if lease is None:
        return
    step_done()
    with lease.kept_alive(_is_moving):
        # Importing torch takes seconds; a process that does not get the lease should fail at once.
        from pipelines.training.process import learn, skip  # noqa: PLC0415

        if start_from is None:
            learn(settings, database, lease, stop, group)
        else:
            skip(settings, database, lease, stop, start_from, group=group)


def take_lease(settings: Settings, database: Database, lifetime: float) -> Lease:
    """The lease of the settings' policy. `lifetime`: seconds. Raises LeaseHeld: another trainer is running; Unavailable."""
    with database.snapshot() as connection:
        known = repository.highest_epoch(connection, settings.policy, before=_NO_EPOCH)
    floor = max(known, highest_epoch(settings.checkpoints))
    return Lease.acquire(database, settings.policy, floor=floor, lifetime=lifetime)
