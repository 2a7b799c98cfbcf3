"""What a save, a start and a rollback cost beside many decided samples, and the memory that they take.

usage: python -m benchmarks.trainer.state [--samples N] [--of-a-version N] [--folder DIR] [--json]

In: nothing, or a folder with the file of an earlier call: 50 million samples take a quarter of an hour and 8 GB. Out: a table; with --json
a dated file too. The file has left the page cache before the first save and before the start. The rest of the state is as after a year: full baselines, a version every 2 hours, a rollback every day.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import print_table, write_report
from pipelines.training.checkpoints.checkpoint import SAMPLES, CheckpointStore
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.known.experiences import pack_key
from pipelines.training.known.known_samples import SampleFile
from pipelines.training.known.lineage import Lineage
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.trackers import MOST_ENTRIES, MOST_KEYS, Entry, MovingAverageTracker
from pipelines.training.state import Fate, TrainerState, begin_epoch, cut_version, roll_back

SAVES, CHANGED = 5, 1_000
"""Saves that are measured, and samples decided between two."""
OF_A_VERSION = 20_000
YEAR = 12 * 365
"""Versions."""
_FIRST_MILLISECONDS = 1_700_000_000_000
_AT_ONCE = 500_000
COLUMNS = ("what", "samples", "seconds", "MB", "peak_MiB")


def bounded_state(num_samples: int, of_a_version: int = OF_A_VERSION, kept: Path | None = None) -> list[dict[str, Any]]:
    """One row per operation, with seconds, MB written and the peak of resident memory until then.

    `of_a_version`: samples of the newest version, which is rolled back in the end. `kept`: where the file of samples is, or is put, for the next call.
    """
    with tempfile.TemporaryDirectory(dir=kept) as name:
        folder = Path(name)
        rows = [_row("build", num_samples, lambda: _build(folder / SAMPLES, num_samples, kept))]
        store, journal, state = CheckpointStore(folder, keep=2), Journal(folder), _a_year(num_samples)
        _cool(folder / SAMPLES)
        for number in range(of_a_version):
            state.fates[_key(num_samples + number)] = _fate(None)
        rows.append(_row("cut a version", of_a_version, lambda: cut_version(state, YEAR + 1, 0.0)))
        rows.append(_row("save after a version", of_a_version, lambda: _save(store, state)))
        (newest,) = [path.name for path in folder.glob("checkpoint-*")]
        journal.start(newest, 1)
        for round_ in range(SAVES):
            # Most samples are new, one in ten is a late correction of any older one; and as many are forgotten.
            first = num_samples + of_a_version + round_ * 2 * CHANGED
            state.expired_before = (_FIRST_MILLISECONDS + (round_ + 1) * 20 * CHANGED) / 1000
            _decide(state, num_samples, first)
            rows.append(_row("save beside the journal", CHANGED, lambda: store.keep_state(state, journal)))
            _decide(state, num_samples, first + CHANGED)
            rows.append(_row("save with weights", CHANGED, lambda: _save(store, state)))
        found: list[TrainerState] = []
        _cool(folder / SAMPLES)
        rows.append(_row("start", num_samples, lambda: found.append(_start(folder))))
        rows.append(_row("rollback", of_a_version, lambda: _roll_back(found[0])))
        rows.append(_row("save after the rollback", of_a_version, lambda: _save(CheckpointStore(folder, 2), found[0])))
    return rows


def _a_year(num_samples: int) -> TrainerState:
    """A state after a year, of which the file knows the last samples."""
    numbers = (version for version in range(YEAR, 0, -1) if version % 12)
    state = TrainerState(epoch=1, ordinal=YEAR, lineage=Lineage.of([YEAR, *list(numbers), 0]), sequence=0)
    tracker = MovingAverageTracker()
    each = MOST_ENTRIES // MOST_KEYS
    for number in range(MOST_KEYS):
        entries = [Entry(YEAR - each + place, 0.5 + number / 1e6, 12.345678901) for place in range(each)]
        tracker.entries[f"task/{number:032x}"] = tuple(entries)
    state.tracker = tracker.to_json()
    state.samples.mark = num_samples
    state.use(state.samples)
    return state


def _decide(state: TrainerState, num_samples: int, first: int) -> None:
    for number in range(first, first + CHANGED):
        index = number * 7919 * 104_729 % num_samples if number % 10 == 0 else number
        state.fates[_key(index)] = _fate(YEAR + 1)


def _build(path: Path, number: int, kept: Path | None) -> None:
    """The rows of versions that were cut long ago, written in bulk."""
    made = path if kept is None else kept / f"{number}.db"
    if not made.exists():
        _fill(made.with_suffix(".part"), number)
        made.with_suffix(".part").rename(made)
    if made != path:
        shutil.copyfile(made, path)


def _cool(path: Path) -> None:
    """Let the system forget the file's pages, as if another day's."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _fill(path: Path, number: int) -> None:
    file = SampleFile(path)
    file.last()
    file.close()
    row = msgspec.msgpack.encode(_fate(1))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for first in range(0, number, _AT_ONCE):
        last = min(first + _AT_ONCE, number)
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO change VALUES (?, ?, ?)", _rows(first, last, row))
        connection.execute("INSERT INTO cut VALUES (?, ?)", (YEAR - (number - last) // _AT_ONCE, last))
        connection.execute("COMMIT")
    connection.execute("INSERT INTO owner VALUES (1, ?)", (number,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _rows(first: int, last: int, value: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    for index in range(first, last):
        key = pack_key(_key(index)) + b"f"
        yield index + 1, key, SampleFile.sealed(key, value)


def _key(number: int) -> str:
    """A sample key as of completions at 100 a second."""
    at = _FIRST_MILLISECONDS + number * 10
    value = (
        at << 80 | 0x7 << 76 | (number * 2654435761 & 0xFFF) << 64 | 0b10 << 62 | (number * 0x9E3779B97F4A7C15) % 2**62
    )
    return f"chatcmpl-{uuid.UUID(int=value)}:0"


def _fate(version: int | None) -> Fate:
    return Fate(1, "trained", version=version, applied=0.731, pull=0.00123, weight=0.9, zero=0.52)


def _save(store: CheckpointStore, state: TrainerState) -> None:
    store.save(Checkpoint(state, {}, {}))


def _start(folder: Path) -> TrainerState:
    checkpoint, _ = CheckpointStore(folder, keep=2).load_newest()
    if checkpoint is None:
        raise RuntimeError("no checkpoint")
    begin_epoch(checkpoint.state, 2)
    return checkpoint.state


def _roll_back(state: TrainerState) -> None:
    roll_back(state, TrainerState(lineage=state.lineage[1:]), {YEAR + 1: "evidence"}, 0.0)


def _row(what: str, number: int, act: Callable[[], object]) -> dict[str, Any]:
    written, began = _written(), time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "what": f"state: {what}",
        "samples": number,
        "seconds": seconds,
        "MB": _written() - written,
        "peak_MiB": peak,
    }


def _written() -> float:
    """MB that this process gave to the system to write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"]) / 1e6


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer.state")
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--of-a-version", type=int, default=OF_A_VERSION)
    parser.add_argument("--folder", type=Path, help="holds the file of samples from one call to the next")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = bounded_state(options.samples, options.of_a_version, options.folder)
    print_table(
        "the trainer's state",
        COLUMNS,
        [
            [
                f"{row[column]:,}"
                if column == "samples"
                else f"{row[column]:.3f}"
                if isinstance(row[column], float)
                else row[column]
                for column in COLUMNS
            ]
            for row in rows
        ],
    )
    if options.json:
        print(f"written: {write_report('trainer-state', {'samples': options.samples, 'rows': rows})}")


if __name__ == "__main__":
    main(sys.argv[1:])
