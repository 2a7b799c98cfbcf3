"""The trainer: its steps beside trl's; a save, a start and a rollback beside many decided samples; and telling many outcomes.

usage: python -m benchmarks.trainer [--rounds N] [--samples N] [--fates N] [--rolled-back N] [--json]

In: as many decided samples as a home has after days. Out: a table; with --json a dated file too. Beside each telling, the same
through one record per sample, as it was before, at a size that the log takes in one append.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.log.run import server_urls
from benchmarks.report import print_table, write_report
from benchmarks.trainer.state import bounded_state
from benchmarks.trainer.throughput import throughput
from contracts.event_log import EventLog
from contracts.faults import no_fault
from contracts.ids import new_completion_id, sample_key
from contracts.topics import OUTCOMES
from pipelines.training.samples.reporting import OutcomeReporter, outcomes_of
from pipelines.training.state import Fate, TrainerState, begin_epoch, roll_back
from runtime.log.kafka import KafkaLog
from runtime.log.local import LocalLog
from runtime.log.outbox import message

SINGLY = 20_000
_BOUND_SECONDS = 20.0


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer")
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison with trl; 0 leaves it out")
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--fates", type=int, default=400_000)
    parser.add_argument("--rolled-back", type=int, default=500_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    ratios = throughput(options.rounds) if options.rounds else {}
    print(json.dumps({name: value for name, value in ratios.items() if name != "cases"}))
    rows = bounded_state(options.samples)
    for name, opened in _logs():
        with opened as log:
            rows += [
                _start(name, log, options.fates),
                _rollback(name, log, options.rolled_back),
                _one_by_one(name, log),
            ]
    columns = ("what", "samples", "seconds", "cpu_seconds", "MB", "records", "peak_MiB")
    print_table("the trainer's state", columns, [[_shown(row.get(column)) for column in columns] for row in rows])
    if options.json:
        path = write_report("trainer", {**ratios, "bound_seconds": _BOUND_SECONDS, "rows": rows})
        print(f"written: {path}")


def a_state(num_fates: int) -> TrainerState:
    """The state of a home older than numbered outcomes: everything is trained, in two versions."""
    keys = (sample_key(new_completion_id(), 0) for _ in range(num_fates))
    fates = {key: Fate(1, "trained", version=1 + number % 2, applied=1.0) for number, key in enumerate(keys)}
    return TrainerState(epoch=3, ordinal=2, lineage=[2, 1, 0], fates=fates)


def _start(name: str, log: EventLog, num_fates: int) -> dict[str, Any]:
    """The first start of a home whose outcomes had no numbers: everything is told once."""
    state = a_state(num_fates)
    return _telling(f"{name}: first start", log, state, lambda: begin_epoch(state, 4))


def _rollback(name: str, log: EventLog, num_fates: int) -> dict[str, Any]:
    """All of it is poison."""
    state = a_state(num_fates)
    state.sequence = 0

    def undo() -> None:
        roll_back(state, TrainerState(), {1: "poison", 2: "poison"}, time.time())
        begin_epoch(state, 5)

    return _telling(f"{name}: rollback", log, state, undo)


def _telling(what: str, log: EventLog, state: TrainerState, begin: Any) -> dict[str, Any]:
    reporter = OutcomeReporter(state, log, time.time, no_fault)
    first, began = sum(log.ends(OUTCOMES).values()), time.process_time()
    decided, _ = _timed(begin)
    saved, encoded = _timed(state.to_json)
    reporter.saved(reporter.mark())
    told, _ = _timed(reporter.report)
    cpu = time.process_time() - began
    row = {"what": what, "samples": len(state.fates), "seconds": decided + saved + told, "MB": len(encoded) / 1e6}
    parts = {"decide_seconds": decided, "save_seconds": saved, "tell_seconds": told, "cpu_seconds": cpu}
    return row | parts | {"records": sum(log.ends(OUTCOMES).values()) - first}


def _one_by_one(name: str, log: EventLog) -> dict[str, Any]:
    """As it was: one append, a record per sample."""
    state = a_state(SINGLY)
    begin_epoch(state, 6)
    outcomes = [outcome for key in state.fates for outcome in outcomes_of(key, state, 1.0)]
    told, _ = _timed(lambda: log.append([message(OUTCOMES, outcome.key, outcome) for outcome in outcomes]))
    return {"what": f"{name}: a record each", "samples": SINGLY, "seconds": told, "records": SINGLY}


def _logs() -> Iterator[tuple[str, Any]]:
    yield "embedded", _local()
    if (servers := server_urls()) is not None:
        yield "Kafka", _kafka(servers[0])
    else:
        print("MILLRACE_KAFKA and MILLRACE_DATABASE are not set: only embedded is measured (see `make services`)")


@contextmanager
def _local() -> Iterator[EventLog]:
    with tempfile.TemporaryDirectory() as folder:
        log = LocalLog(Path(folder))
        yield log
        log.close()


@contextmanager
def _kafka(servers: str) -> Iterator[EventLog]:
    log = KafkaLog(servers, prefix=f"bench-{uuid.uuid4().hex[:8]}-")
    log.create_topics()
    yield log
    log.close()


def _timed(act: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = act()
    return time.perf_counter() - began, found


def _shown(value: object) -> object:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main(sys.argv[1:])
