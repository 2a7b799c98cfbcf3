"""`millrace log tail`: print records as JSON lines. `accept-loss`, `recover-signals`: go on with a log that lost or kept more than the database.

Nothing is appended to the log here: records to send again go through the outboxes, in one transaction with the positions.
"""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from commands.home import claimed
from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import Conflict, InvalidRecord, InvalidSettings
from contracts.event_log import LogRecord
from contracts.records import Generation, decode_shape, unpack_floats, unpack_ids
from contracts.tasks.loading import load_tasks
from contracts.topics import TOPICS
from runtime.log import loss_acceptance
from runtime.log.loss_detection import in_words, losses
from runtime.log.recovery import recover_signals
from runtime.log.redrive import KINDS
from runtime.settings import load_settings

_PACKED_IDS = {"prompt_ids", "completion_ids", "token_ids"}
_POLL_SECONDS = 0.2
app = typer.Typer(help="Print records of the log; go on after a lost log.", no_args_is_help=True)


class _DryRunError(Exception):
    """Rolls the transaction of a dry run back."""


@app.command("accept-loss")
def accept_loss(
    home: HomeOption = DEFAULT_HOME,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without --yes, only show what would happen.")] = False,
) -> None:
    """Go on after the log was lost or replaced: show what is missing and what becomes of it; with --yes, do it."""
    settings = load_settings(home)
    with claimed(home), closing(settings.database()) as database, closing(settings.event_log()) as event_log:
        if not (lost := losses(database, event_log)):
            print("nothing is missing: the log is the one that this database was written with")
            return
        for line in in_words(lost):
            print(line)
        tasks = load_tasks(settings.tasks)
        with suppress(_DryRunError), database.transaction() as connection:
            accepted = loss_acceptance.accept_loss(connection, lost, event_log.describe(), tasks, time.time())
            if not yes:
                raise _DryRunError
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


@app.command("recover-signals")
def recover(home: HomeOption = DEFAULT_HOME) -> None:
    """After a restore while Kafka was away: receive the signals that were acknowledged after the backup, and that only Kafka has.

    The home's processes must be stopped, and must not have run since the restore. `millrace restore` does it by itself if it can.
    """
    with claimed(home):
        number = receive_from_log(home)
    print(f"{number} signals received from the log")


def receive_from_log(home: Path) -> int:
    """Receive the signals that were acknowledged after a backup; returns how many.

    Raises Conflict: the log is not the one of this database, or lost records of it.
    """
    settings = load_settings(home)
    with closing(settings.database()) as database, closing(settings.event_log()) as event_log:
        if lost := losses(database, event_log):
            why = "; ".join(in_words(lost))
            raise Conflict(f"the log is not the one of this database: {why}: see millrace log accept-loss")
        with database.transaction() as connection:
            return recover_signals(connection, event_log, time.time())


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="generations, signals, episodes, experiences or outcomes.")],
    home: HomeOption = DEFAULT_HOME,
    count: Annotated[int, typer.Option("-n", help="How many of the newest records to print.")] = 10,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records.")] = False,
) -> None:
    """Print the newest records of a topic as JSON lines, in the order in which they were appended."""
    if topic not in TOPICS:
        raise InvalidSettings(f"no topic {topic!r}; there are {', '.join(TOPICS)}")
    log = load_settings(home).event_log()
    places = {partition: max(0, end - count) for partition, end in log.ends(topic).items()}
    first = True
    while first or follow:
        records = [r for partition, offset in places.items() for r in log.read(topic, partition, offset, 1000)]
        newest = sorted(records, key=lambda record: record.appended_at)
        for record in newest[-count:] if first else newest:
            print(json.dumps(as_json(record), ensure_ascii=False), flush=True)
        places |= {record.partition: record.offset + 1 for record in records}
        first = False
        if follow:
            time.sleep(_POLL_SECONDS)
    log.close()


def as_json(record: LogRecord) -> dict[str, Any]:
    """A record for people. One that cannot be decoded has `unreadable` instead of `record`."""
    head = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "key": record.key}
    try:
        return head | {"record": plain(decode_shape(KINDS[record.topic], record.value))}
    except (InvalidRecord, ValueError, RecursionError) as error:  # the second: half a number in a packed array
        return head | {"unreadable": str(error)}


def visible(text: str) -> str:
    """A text that somebody else wrote, without characters that a terminal obeys."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1] for letter in text)


def plain(value: Any, name: str = "") -> Any:
    """A value as JSON types: bodies decoded, packed arrays as lists."""
    if isinstance(value, Generation):
        return {**_fields(value), "body": plain(value.open())}
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, dict):
        return {key: plain(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return _unpacked(value, name) if isinstance(value, bytes) else value


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: plain(value, name) for name, value in msgspec.structs.asdict(record).items() if name != "body"}


def _unpacked(value: bytes, name: str) -> list[int] | list[float]:
    if name == "loss_mask":
        return list(value)
    return unpack_ids(value) if name in _PACKED_IDS else unpack_floats(value)
