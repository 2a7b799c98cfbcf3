"""`millrace log accept-loss`: go on with a log that is not the database's own log, or that misses a part.

In: a home whose processes have stopped. Out: read positions that the log holds, and a state for everything in the lost part.
Waits for: the database's lock. Without --yes nothing is changed.

Nothing is appended to the log here: records to send again go through the outboxes, in one transaction with the positions.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from commands.home import claimed
from commands.options import DEFAULT_HOME, HomeOption
from contracts.event_log import EventLog
from contracts.tasks.loading import load_tasks
from runtime.database import Database
from runtime.log import loss_acceptance
from runtime.log.loss_detection import in_words, losses
from runtime.settings import load_settings


class _DryRunError(Exception):
    """Rolls the transaction of a dry run back."""


def accept_loss(
    home: HomeOption = DEFAULT_HOME,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without --yes, only show what would happen.")] = False,
) -> None:
    """Go on after the log was lost or replaced: show what is missing and what becomes of it; with --yes, do it."""
    settings = load_settings(home)
    with claimed(home), closing(settings.database()) as database, closing(settings.event_log()) as event_log:
        _run(database, event_log, settings.tasks, home, yes=yes)


def _run(database: Database, event_log: EventLog, tasks: tuple[Path, ...], home: Path, *, yes: bool) -> None:
    lost = losses(database, event_log)
    if not lost:
        print("nothing is missing: the log is the one that this database was written with")
        return
    for line in in_words(lost):
        print(line)
    try:
        with database.transaction() as connection:
            accepted = loss_acceptance.accept_loss(
                connection, lost, event_log.describe(), load_tasks(tasks), time.time()
            )
            if not yes:
                raise _DryRunError  # noqa: TRY301 an exception is how a transaction is rolled back
    except _DryRunError:
        pass
    verb = "were" if yes else "would be"
    print(
        f"answers only in the lost log: {accepted.num_generations} {verb} written off; `millrace audit` calls them log_lost"
    )
    print(f"signals not yet joined: {accepted.num_signals} {verb} sent again from the database")
    print(
        f"answers not yet decided: {accepted.num_episodes} {verb} emitted again, to be scored and decided as a later revision"
    )
    print(f"outcomes that are known: {accepted.num_fates} {verb} sent again")
    print(f"answers that can no longer be scored: {accepted.num_unscored} {verb} marked unscored(log_lost)")
    if accepted.is_training_hit:
        print(
            "the trainer reads experiences again from the oldest one in the log, and skips by key those it has decided. To skip "
            f"all of them: millrace training --home {home} --from now"
        )
    print(f"done; continue with: millrace up --home {home}" if yes else "nothing was changed; run it again with --yes")
