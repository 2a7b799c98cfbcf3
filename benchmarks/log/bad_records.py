"""What records that cannot be processed cost the worker `episodes`.

Four feeds are compared: no bad records; 1% that `decode` refuses (a time of 1e300); 1% that decode well and for which the handler
raises while it has them in hand; 1% for which it raises late, with nothing that says for whom. Each drains a backlog (the most that the worker does) and keeps pace with 500 records a
second. At 60% it tells how many records of one partition were looked at before the worker halted. Arms are interleaved.

    python -m benchmarks.log.bad_records [--services] [--records 4000] [--seconds 8] [--repeats 3]

`--services`: PostgreSQL and Kafka of MILLRACE_DATABASE and MILLRACE_KAFKA besides the embedded home.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, func, select

from benchmarks.log.feed import TASK, task_text
from benchmarks.report import summarise, write_report
from contracts.errors import TooManyDeadLetters
from contracts.event_log import EventLog, Message
from contracts.ids import new_completion_id
from contracts.records import Generation, GenerationBody, pack_body, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.tables import dead_letter, generation
from contracts.tasks.loading import load_tasks
from contracts.topics import GENERATIONS
from pipelines.episodes.epochs.chain import Epochs
from pipelines.episodes.handler import EpisodesHandler, ReadRecord
from pipelines.episodes.samples import Samples
from runtime.database import Database, create_database
from runtime.days import migrate
from runtime.log.kafka import KafkaLog
from runtime.log.local import LocalLog
from runtime.log.outbox import message
from runtime.worker import Worker

RATE = 500.0
KINDS = ("none", "refused", "raising", "late")
_BAD = "bad"


class Failing(EpisodesHandler):
    """Raises for answers of one dtype, which no rule looks at."""

    is_late = False

    def _apply(self, samples: Samples, item: ReadRecord, epochs: Epochs) -> list[Message]:
        if not self.is_late and isinstance(item.record, Generation) and item.record.dtype == _BAD:
            raise ZeroDivisionError("a fault of the handler")
        return super()._apply(samples, item, epochs)

    def handle(self, connection: Connection, items: Any) -> list[Message]:
        """As of the join; may fail late, as a database does: all that it costs has been spent, and nobody was in hand."""
        messages = super().handle(connection, items)
        if self.is_late and any(isinstance(item.record, Generation) and item.record.dtype == _BAD for item in items):
            raise ZeroDivisionError("a fault of the handler")
        return messages


def feed(num: int, kind: str, share: float, seed: int) -> list[Message]:
    """Answers of users, some of them bad."""
    draw, now = random.Random(seed), time.time()  # noqa: S311 the same feed each time
    ids = pack_ids(list(range(64)))
    told = [{"role": "user", "content": "a table for two at eight, by the window if there is one"}]
    logprobs = pack_floats([-0.5] * 64)
    body = pack_body(
        GenerationBody(messages=told, text="x" * 200, prompt_ids=ids, completion_ids=ids, logprobs=logprobs)
    )
    messages = []
    for _ in range(num):
        is_bad = kind != "none" and draw.random() < share
        record = Generation(
            completion_id=new_completion_id(), choice=0, tenant="default", policy="p", task=TASK, task_hash="",
            purpose="user", arm="live", arm_probability=1.0, spans=(Span(0, 1),), finish_reason="stop",
            sampling=Sampling(temperature=1.0, max_tokens=64), engine="e", body=body, finished_at=now,
            created_at=1e300 if is_bad and kind == "refused" else now,
            dtype=_BAD if is_bad and kind != "refused" else "float32",
        )  # fmt: skip
        messages.append(message(GENERATIONS, record.key, record))
    return messages


@contextmanager
def world(services: bool, kind: str) -> Iterator[tuple[Database, EventLog, Worker[Any]]]:
    """A database, a log and the worker, all new."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "task.toml").write_text(task_text())
        event_log: EventLog
        if services:
            database = Database(create_database(os.environ["MILLRACE_DATABASE"], f"bench_{uuid.uuid4().hex[:12]}"))
            event_log = KafkaLog(os.environ["MILLRACE_KAFKA"], prefix=f"bench-{uuid.uuid4().hex[:12]}-")
        else:
            database, event_log = Database(f"sqlite:///{home / 'm.db'}"), LocalLog(home / "log")
        migrate(database)
        event_log.create_topics()
        handler = Failing(load_tasks((home / "task.toml",)))
        handler.is_late = kind == "late"
        worker = Worker(handler, database, event_log)
        yield database, event_log, worker
        event_log.close()
        database.close()


def drain(services: bool, num: int, kind: str, seed: int) -> float:
    """Records a second from a backlog."""
    with world(services, kind) as (database, event_log, worker):
        messages = feed(num, kind, 0.01, seed)
        event_log.append(messages)
        while not worker.step(1.0):  # until the group has met
            pass
        before = _num_passed(database)
        started = time.perf_counter()
        while (passed := _num_passed(database)) < num:
            worker.step(0.1)
        return (passed - before) / (time.perf_counter() - started)


def keep_pace(services: bool, seconds: float, kind: str, seed: int) -> float:
    """The share of records, appended at 500 a second, that was handled when the feed ended, give or take one poll."""
    num = int(RATE * seconds)
    with world(services, kind) as (database, event_log, worker):
        messages = feed(num, kind, 0.01, seed)
        event_log.append(messages[:50])
        while _num_passed(database) < 50:  # noqa: PLR2004 a warm start
            worker.step(1.0)
        sent, started = 50, time.perf_counter()
        while sent < num:
            due = min(num, 50 + int(RATE * (time.perf_counter() - started)))
            event_log.append(messages[sent:due]) if due > sent else None
            sent = due
            worker.step(0.0)
        worker.step(0.0)
        return (_num_passed(database) - 50) / (num - 50)


def halts_after(services: bool, kind: str, seed: int) -> int:
    """At 60%: the offset in its partition of the record that was one too many, plus one."""
    with world(services, kind) as (_, event_log, worker):
        event_log.append([item._replace(route=0) for item in feed(1000, kind, 0.6, seed)])
        try:
            for _ in range(50):
                worker.step(1.0)
        except TooManyDeadLetters as error:
            return int(str(error.facts["offset"])) + 1
    raise AssertionError("it did not halt")


def _num_passed(database: Database) -> int:
    with database.snapshot() as connection:
        return sum(
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (generation, dead_letter)
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.log.bad_records",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--services", action="store_true")
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    figures: dict[str, Any] = {"options": vars(options), "arms": {}}
    table = Table("profile", "bad", "backlog, records/s", "of 500/s kept", "at 60% halts after")
    for profile in ("embedded", "services") if options.services else ("embedded",):
        is_services = profile == "services"
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        kept: dict[str, list[float]] = {kind: [] for kind in KINDS}
        halts: dict[str, list[float]] = {kind: [] for kind in KINDS[1:]}
        for seed in range(options.repeats):
            for kind in KINDS:
                rates[kind].append(drain(is_services, options.records, kind, seed))
                kept[kind].append(keep_pace(is_services, options.seconds, kind, seed))
                if kind in halts:
                    halts[kind].append(halts_after(is_services, kind, seed))
        for kind in KINDS:
            found = {"records_per_second": summarise(rates[kind]), "kept_of_500_per_second": summarise(kept[kind])}
            found |= {"halts_after": summarise(halts[kind])} if kind in halts else {}
            figures["arms"][f"{profile}, {kind}"] = found
            last = f"{found['halts_after']['median']:.0f}" if kind in halts else ""
            rate, share = found["records_per_second"]["median"], found["kept_of_500_per_second"]["median"]
            table.add_row(profile, kind, f"{rate:.0f}", f"{share:.1%}", last)
    Console().print(table)
    print(write_report("bad-records", figures))


if __name__ == "__main__":
    main()
