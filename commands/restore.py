"""`millrace restore`: a home, its tables and its weights from one file, or nothing at all.

In: a file of `millrace backup`. Out: a home that goes on from that moment. Waits for: the disk and the servers.

    check the places are empty ─▶ unpack beside the home, compare every hash ─▶ bucket ─▶ tables, in one transaction ─▶ give it its name
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from commands import options
from commands.backup import LONGEST_PAUSE_SECONDS, SEQUENCES, left_out
from commands.log import receive_from_log
from contracts.errors import Conflict, InvalidSettings, Unavailable
from runtime import schema
from runtime.backup import tables
from runtime.backup.archive import BackupHeader, read_header, sync_folder, unpack
from runtime.database import Database
from runtime.settings import read_settings, to_toml
from weights.stores.opening import open_store_at
from weights.stores.port import Objects
from weights.versions.layout import policy_folder

_SETTINGS = "millrace.toml"
_OF_A_DISK = frozenset({"lost+found"})


def restore(  # noqa: PLR0917 options of the command line
    file: Annotated[Path, typer.Argument(help="A file that `millrace backup` wrote.")],
    home: options.HomeOption = options.DEFAULT_HOME,
    database: options.DatabaseOption = None,
    kafka: options.KafkaOption = None,
    redis: options.RedisOption = None,
    weights: options.WeightsOption = None,
) -> None:
    """Make a home from a backup. The home, the database and the bucket must be empty; options name other servers than it had."""
    began, home = time.monotonic(), home.resolve()
    _require_empty(home)
    header = read_header(file, schema.newest(), schema.release())
    given = {"database_url": database, "kafka": kafka, "redis": redis, "weights_url": weights}
    _check_kinds(header, given)
    staging = home.with_name(f".{home.name}.{secrets.token_hex(4)}.restoring")
    try:
        staging.mkdir(parents=True, mode=0o700)
        unpack(file, staging)
        written = _write_settings(staging / "home", header, home, given)
        with _empty_places(header, written) as (database_there, bucket):
            _fill(database_there, bucket, header, staging)
            _name(staging / "home", home)
        is_as_it_was = header.log == "kafka" and _recover(home)
    except OSError as error:
        says = f"{home} cannot be made ({error.strerror or error}): free space, or name another --home"
        raise Unavailable(says) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    taken = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(header.taken_at))
    print(f"{home}: {header.policy}, run {header.run}, as of {taken} UTC, in {time.monotonic() - began:.1f} s")
    for line in _next_steps(header, home, written, is_as_it_was=is_as_it_was):
        print(line)


def _require_empty(home: Path) -> None:
    if not home.exists():
        return
    if not home.is_dir():
        raise InvalidSettings(f"{home} is a file: name a folder with --home")
    if held := sorted(path.name for path in home.iterdir() if path.name not in _OF_A_DISK):
        full = f"{home} is not empty: it holds {held[0]!r} and {len(held) - 1} more"
        raise Conflict(f"{full}. Nothing was changed; name a new folder with --home", path=str(home))


def _check_kinds(header: BackupHeader, given: Mapping[str, str | None]) -> None:
    """Rows, records and weights stay where they were of one kind: only the address can change."""
    for name, option, kind, there in (
        ("database_url", "--database", header.database, "postgresql"),
        ("kafka", "--kafka", header.log, "kafka"),
        ("weights_url", "--weights", header.weights, "bucket"),
    ):
        if given[name] is not None and kind not in {there, "left out"}:
            raise InvalidSettings(f"{option} does not fit: what it names is in the home of this backup ({kind})")


def _write_settings(folder: Path, header: BackupHeader, home: Path, given: Mapping[str, str | None]) -> dict[str, Any]:
    content = read_settings(folder / _SETTINGS)
    if content is None:
        raise InvalidSettings(f"the backup has no {_SETTINGS}: it is no home")
    moved: dict[str, dict[str, Any]] = _moved(content, header.home, str(home))
    moved["millrace"] |= {name: value for name, value in given.items() if value is not None}
    (folder / _SETTINGS).write_text(to_toml(moved))
    return moved["millrace"]


def _moved(value: Any, old: str, new: str) -> Any:
    """Every path in the old home becomes one in the new."""
    if isinstance(value, dict):
        return {name: _moved(item, old, new) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, old, new) for item in value]
    if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
        return new + value.removeprefix(old)
    return value


@contextmanager
def _empty_places(header: BackupHeader, written: Mapping[str, Any]) -> Iterator[tuple[Database | None, Objects | None]]:
    """Open the database and the bucket that the backup has rows or objects for. Raises Conflict: one is not empty."""
    bucket = open_store_at(written["weights_url"]).objects if header.weights == "bucket" else None
    if bucket is not None and next(iter(bucket.list_below(policy_folder(header.policy))), None) is not None:
        raise Conflict(
            f"{bucket.place} is not empty: it has versions of {header.policy}. Nothing was changed; name another prefix with "
            "--weights, or take the backup with --no-weights and keep this one"
        )
    if header.database == "sqlite":
        yield None, bucket
        return
    with closing(Database(written["database_url"], longest_pause_seconds=LONGEST_PAUSE_SECONDS)) as database:
        tables.require_empty(database)
        yield database, bucket


def _fill(database: Database | None, bucket: Objects | None, header: BackupHeader, staging: Path) -> None:
    if bucket is not None:
        root = staging / "weights"
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            bucket.put(path.relative_to(root).as_posix(), path.read_bytes())
    if database is not None:
        folders = sorted(path for path in (staging / "tables").iterdir() if path.is_dir())
        rows = {folder.name: map(Path.read_bytes, sorted(folder.iterdir())) for folder in folders}
        sequences = msgspec.json.decode((staging / SEQUENCES).read_bytes(), type=dict[str, int])
        tables.load(database, header.days, rows, sequences)


def _name(staged: Path, home: Path) -> None:
    """Give the home its name: at once where its folder is not there yet; in a mounted one the settings come last."""
    if not home.exists():
        staged.rename(home)
        return
    _require_empty(home)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == _SETTINGS):
        shutil.move(path, home / path.name)
    sync_folder(home)


def _recover(home: Path) -> bool:
    """Receive the signals that only Kafka has; False if that must be done later, because it is lost or away."""
    try:
        number = receive_from_log(home)
    except Unavailable as error:
        print(f"Kafka does not answer: {error.message}")
        return False
    except Conflict:  # it is lost; the next steps say what to do then
        return False
    print(f"{number} signals that were acknowledged after the backup: received from Kafka")
    return True


def _next_steps(header: BackupHeader, home: Path, written: Mapping[str, Any], *, is_as_it_was: bool) -> Iterator[str]:
    yield from left_out(header)
    missing = [str(path) for path in (written["base"], *written["tasks"]) if not Path(path).exists()]
    if missing:
        yield f"missing here: {', '.join(missing)}. Copy them, or name others at the start with --policy and --task"
    if header.log == "kafka" and is_as_it_was:
        yield "Kafka is as it was: if versions were published after the backup, remove the weight store's pointers/live.json"
    elif header.log == "kafka":
        yield (
            f"if Kafka was lost too: `millrace log accept-loss --home {home}` shows what is lost with it. If it was only away: "
            f"`millrace log recover-signals --home {home}` once it answers, and remove the weight store's pointers/live.json"
        )
    yield f"see to it that the old home stays stopped; then `millrace doctor --deep --home {home}`, start, and `millrace audit --deep`"
