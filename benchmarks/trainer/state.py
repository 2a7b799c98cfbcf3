"""What a save, a start and a rollback cost beside many decided samples, and the memory that they take."""

from __future__ import annotations

import resource
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.training.checkpoint import SAMPLES, Checkpoint, CheckpointStore
from pipelines.training.samples import SampleFile, pack_key
from pipelines.training.state import Fate, TrainerState, begin_epoch, cut_version, roll_back

CHANGED = 1_000
"""Samples decided between two saves."""
OF_A_VERSION = 20_000
_FIRST_MILLISECONDS = 1_700_000_000_000


def bounded_state(num_samples: int) -> list[dict[str, Any]]:
    """One row per operation, with seconds, MB written and the peak of resident memory until then."""
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), keep=2)
        state = TrainerState(epoch=1, ordinal=1, lineage=[1, 0], sequence=0)
        rows = [_row("build", num_samples, lambda: _fill(Path(folder) / SAMPLES, num_samples))]
        state.samples.mark = num_samples
        for number in range(OF_A_VERSION):
            state.fates[_key(num_samples + number)] = _fate(None)
        cut_version(state, 2, 0.0)
        rows.append(_row("save after a version", OF_A_VERSION, lambda: _save(store, state)))
        for round_ in range(3):
            for number in range(CHANGED):
                state.fates[_key((round_ * CHANGED + number) * 7 % num_samples)] = _fate(2)
            rows.append(_row("save", CHANGED, lambda: _save(store, state)))
        found: list[TrainerState] = []
        rows.append(_row("start", num_samples, lambda: found.append(_start(Path(folder)))))
        rows.append(_row("rollback", OF_A_VERSION, lambda: _roll_back(found[0])))
        rows.append(
            _row("save after the rollback", OF_A_VERSION, lambda: _save(CheckpointStore(Path(folder), 2), found[0]))
        )
    return rows


def _fill(path: Path, number: int) -> None:
    """The rows of a version that was cut long ago, written in bulk."""
    SampleFile(path).last()
    row = msgspec.msgpack.encode(_fate(1))
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO change VALUES (?, ?, ?)", _rows(number, row))
        connection.execute("INSERT INTO cut VALUES (1, ?)", (number,))
        connection.execute("INSERT INTO owner VALUES (1, ?)", (number,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _rows(number: int, value: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    file = SampleFile("")
    for index in range(number):
        key = pack_key(_key(index)) + b"f"
        yield index + 1, key, file.sealed(key, value)


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
    roll_back(state, TrainerState(lineage=[1, 0]), {2: "evidence"}, 0.0)


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
