"""`millrace log accept-loss`: go on with a log that is not the one of the database, or less of it.

In: a home whose processes have ended. Out: positions that the log holds, and a state for everything that was in the part that
is gone; without --yes only what that would be. Waits for: the database's lock.

Nothing is written into the log here: what is said again goes through the outboxes, in one transaction with the positions.
"""

from __future__ import annotations

import time
from pathlib import Path

from commands.home import claimed
from contracts.event_log import EventLog
from contracts.tasks.loading import load_tasks
from runtime.database import Database
from runtime.log.loss_acceptance import accept_loss
from runtime.log.loss_detection import in_words, losses
from runtime.settings import load_settings


class _OnlyLookedError(Exception):
    """Undoes the transaction of a dry run."""


def run_accept_loss(home: Path, *, yes: bool) -> None:
    """Say what is missing and what becomes of it; with `yes`, do it."""
    settings = load_settings(home)
    with claimed(home):
        database, event_log = settings.database(), settings.event_log()
        try:
            _run(database, event_log, settings.tasks, home, yes=yes)
        finally:
            event_log.close()
            database.close()


def _run(database: Database, event_log: EventLog, tasks: tuple[Path, ...], home: Path, *, yes: bool) -> None:
    lost = losses(database, event_log)
    if not lost:
        print("nothing is missing: the log is the one that this database was written with")
        return
    for line in in_words(lost):
        print(line)
    try:
        with database.transaction() as connection:
            accepted = accept_loss(connection, lost, event_log.describe(), load_tasks(tasks), time.time())
            _keep_only_if(yes)
    except _OnlyLookedError:
        pass
    verb = "were" if yes else "would be"
    print(
        f"answers that only the log had: {accepted.num_generations} {verb} written off; `millrace audit` names them log_lost"
    )
    print(f"signals that had not been joined: {accepted.num_signals} {verb} sent again from the database")
    print(
        f"answers without a fate: {accepted.num_episodes} {verb} emitted again, to be scored and decided as a later revision"
    )
    print(f"answers whose fate is known: {accepted.num_fates} {verb} told again")
    print(f"answers that nobody can judge any more: {accepted.num_unscored} {verb} unscored(log_lost)")
    if accepted.is_training_hit:
        print(
            "the trainer reads experiences from the beginning of what the log holds, and knows what it decided by its keys; to "
            f"leave those out: millrace training --home {home} --from now"
        )
    print(f"done: millrace up --home {home} goes on" if yes else "nothing was changed; with --yes it is")


def _keep_only_if(yes: bool) -> None:
    if not yes:
        raise _OnlyLookedError
