"""`millrace backup`: one file with everything of a home, taken while it runs.

In: a home. Out: one file that exists whole or not at all. Waits for: writers of an embedded home, some milliseconds; then the disk.

    home's files, log, SQLite ─ one moment ─┐
    PostgreSQL ── a snapshot of that moment ─┼─▶ FILE
    bucket ── versions that it names ────────┘       Kafka stays where it is: only the ends of its partitions are noted
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from sqlalchemy import Connection

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import Conflict, InvalidSettings, Unavailable
from runtime import schema
from runtime.backup import tables
from runtime.backup.archive import FORMAT, HEADER, BackupHeader, BackupWriter, writing
from runtime.backup.cut import HomeCut, copy_database, home_cut
from runtime.database import Database
from runtime.days import held_days
from runtime.settings import Settings, load_settings
from weights.stores.opening import open_store_at
from weights.versions.layout import policy_folder

LONGEST_PAUSE_SECONDS = 3600.0
"""PostgreSQL ends a transaction that waits longer for the next table: a disk may be slow."""
_MIB = 2**20
SEQUENCES = "tables/sequences.json"


def backup(
    to: Annotated[Path, typer.Option("--to", help="The file to write; it must not exist.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Whether the objects of a bucket are in it too.")
    ] = True,
) -> None:
    """Write one file with database, log, keys, checkpoints and weights, while Millrace runs. Kafka's records are not in it."""
    settings, began = load_settings(home), time.monotonic()
    if settings.home.resolve() != home.resolve():
        raise InvalidSettings(
            f"{home}/millrace.toml is that of {settings.home}: back up that home, or start this copy once with `millrace up`"
        )
    if to.resolve().is_relative_to(settings.home.resolve()):
        raise Conflict(f"{to} is inside the home: write the backup elsewhere, or the next one would hold this one")
    with writing(to) as writer, _taken(settings, with_weights=weights) as (header, cut, rows):
        writer.add_bytes(HEADER, msgspec.json.encode(header))
        if rows is not None:  # first: the server ends a snapshot that idles
            for table, number, content in tables.pieces_of(rows):
                writer.add_bytes(f"tables/{table}/{number:06}", content)
            writer.add_bytes(SEQUENCES, msgspec.json.encode(tables.sequences_of(rows)))
        _write_home(writer, cut, to.parent)
        if header.weights == "bucket":
            _write_bucket(writer, settings)
        num_bytes, held = writer.num_bytes, cut.held_seconds
    print(f"{to}: {num_bytes / _MIB:.1f} MiB in {time.monotonic() - began:.1f} s; writers waited {held * 1000:.0f} ms")
    for line in left_out(header):
        print(line)


def left_out(header: BackupHeader) -> Iterator[str]:
    """What a backup does not hold, in words."""
    if header.log == "kafka":
        number = sum(sum(ends.values()) for ends in header.ends.values())
        yield (
            f"not in it: Kafka's records; its topics ended at {number} offsets in all. What Kafka got later is read again after a "
            "restore; without Kafka, what no worker had read is lost: see docs/operating.md, Back up and restore"
        )
    if header.weights == "left out":
        yield "not in it: the objects of the bucket (--no-weights)"
    yield "not in it: the base policy and the task files, which lie outside the home; logs/, replica/ and bundles/"


@contextmanager
def _taken(settings: Settings, *, with_weights: bool) -> Iterator[tuple[BackupHeader, HomeCut, Connection | None]]:
    """What is read at leisure, once writers go on; with a snapshot of PostgreSQL's rows."""
    with ExitStack() as stack:
        database = Database(
            settings.database_url or f"sqlite:///{settings.home / 'millrace.db'}",
            longest_pause_seconds=LONGEST_PAUSE_SECONDS,
        )
        stack.callback(database.close)
        with database.snapshot() as connection:
            schema.require_same(connection)
        found: list[Connection] = []

        def take_rows() -> None:
            if settings.database_url is not None:
                found.append(stack.enter_context(database.snapshot()))
                schema.require_same(found[0])

        cut = stack.enter_context(home_cut(settings.home, take_rows))
        rows = found[0] if found else None
        header = BackupHeader(
            format=FORMAT,
            release=schema.release(),
            schema=schema.newest(),
            policy=settings.policy,
            run=settings.run,
            home=str(settings.home),
            taken_at=time.time(),
            database="sqlite" if rows is None else "postgresql",
            log="home" if settings.kafka is None else "kafka",
            weights="home" if settings.weights_url is None else "bucket" if with_weights else "left out",
            ends=_ends(settings),
            days=() if rows is None else tuple(held_days(rows)),
        )
        yield header, cut, rows


def _ends(settings: Settings) -> dict[str, dict[str, int]]:
    """Where the log ends, by topic and partition; nothing if it is away: a backup is wanted then, too."""
    with closing(settings.event_log()) as event_log:
        try:
            found = event_log.describe()
        except Unavailable as error:
            print(f"the log's ends are not noted: {error.message}")
            return {}
    return {topic: {str(partition): end for partition, end in state.ends.items()} for topic, state in found.items()}


def _write_home(writer: BackupWriter, cut: HomeCut, space: Path) -> None:
    """`space`: where copies of databases lie for a moment."""
    for name, connection in cut.databases.items():
        with tempfile.NamedTemporaryFile(dir=space, prefix=".millrace-", suffix=".part") as held:
            copy = Path(held.name)
            copy_database(connection, copy)
            connection.execute("ROLLBACK")  # from now on its write-ahead log may shrink again
            with copy.open("rb") as file:
                writer.add(f"home/{name}", file, copy.stat().st_size)
    for item in cut.files:
        with item.path.open("rb") as file:
            writer.add(f"home/{item.name}", file, item.size)


def _write_bucket(writer: BackupWriter, settings: Settings) -> None:
    """Every object of the policy. One that was removed meanwhile belonged to no version that the database serves."""
    objects = open_store_at(str(settings.weights_url)).objects
    for item in objects.list_below(policy_folder(settings.policy)):
        if (content := objects.get_range(item.path, 0, item.num_bytes)) is None:
            continue
        if len(content) != item.num_bytes and objects.head(item.path) is not None:
            raise Unavailable(f"{objects.place} sent a part of {item.path}: take the backup again")
        writer.add_bytes(f"weights/{item.path}", content)
