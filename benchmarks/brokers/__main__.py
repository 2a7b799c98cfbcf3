"""Three brokers on loopback lose one at a time under load: is anything lost or done twice, and how long does anybody wait?

    python -m benchmarks.brokers             each broker is killed once (SIGKILL); then one is away where all three must have a record
    python -m benchmarks.brokers --quick     one broker only; nothing is written

Topics have 12 partitions on three brokers, two of which must have a record (`kafka_replication = 3`, `kafka_min_insync = 2`). People ask and
send feedback all the time, over HTTP. With PostgreSQL in MILLRACE_DATABASE there are two of each worker. In the end the ledger is compared with
what the people were told. Exits with 1 if anything is missing or was done twice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.brokers.cluster import Cluster
from benchmarks.brokers.world import World, longest
from benchmarks.report import percentile, print_table, write_report
from commands.audit import audit
from contracts.ids import sample_key
from contracts.tables import dead_letter, generation, score, signal
from contracts.topics import GENERATIONS

_BROKERS = 3
_QUIET_SECONDS, _AWAY_SECONDS = 8.0, 12.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.brokers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--people", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one broker; nothing is written")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="millrace-brokers-") as folder:
        figures = measure(Path(folder), options.partitions, options.people, is_quick=options.quick)
    if options.json:
        print(json.dumps(figures))
    else:
        _print(figures)
    if not options.quick:
        print(write_report("brokers", figures).name)
    return 0 if figures["good"] else 1


def measure(folder: Path, partitions: int, num_people: int, *, is_quick: bool) -> dict[str, Any]:
    """The report."""
    cluster = Cluster(folder, _BROKERS)
    world: World | None = None
    try:
        cluster.begin()
        database = os.environ.get("MILLRACE_DATABASE")
        world = World(folder, cluster.servers, partitions=partitions, copies=_BROKERS, database=database)
        world.start(num_people)
        phases = _phases(cluster, world, is_quick=is_quick)
        world.rest()
        drained = world.settle()
        return {
            "partitions": partitions,
            "replication": _BROKERS,
            "min_insync": _BROKERS - 1,
            "people": num_people,
            "database": "SQLite" if database is None else "PostgreSQL",
            "phases": phases,
            "seconds_to_drain": drained,
            **_verdict(world),
        }
    finally:
        if world is not None:
            world.close()
        cluster.close()


def _phases(cluster: Cluster, world: World, *, is_quick: bool) -> list[dict[str, Any]]:
    topics, found = world.topics, []
    began = time.monotonic()
    time.sleep(_QUIET_SECONDS)
    found.append(_phase(world, "all there", began))
    killed = list(cluster.numbers)[: 1 if is_quick else None]
    found += [_lose(cluster, world, topics, number, f"broker {number} killed") for number in killed]
    # A record now needs all three: while one is away, nothing can be appended.
    cluster.set_min_insync(topics, _BROKERS)
    found.append(_lose(cluster, world, topics, 2, "min.insync.replicas 3, broker 2 killed"))
    return found


def _lose(cluster: Cluster, world: World, topics: list[str], number: int, name: str) -> dict[str, Any]:
    began = time.monotonic()
    cluster.kill(number)
    time.sleep(_AWAY_SECONDS)
    cluster.start(number)
    cluster.wait_for(number)
    in_sync = cluster.wait_in_sync(topics)
    time.sleep(_QUIET_SECONDS / 2)
    return {**_phase(world, name, began), "seconds_until_in_sync": in_sync}


def _phase(world: World, name: str, began: float) -> dict[str, Any]:
    ended = time.monotonic()
    inside = [item for item in list(world.told) if began <= item.ended < ended]
    figures: dict[str, Any] = {"phase": name, "seconds": ended - began}
    for kind in ("chat", "feedback"):
        mine = [item for item in inside if item.kind == kind]
        waits = [item.ended - item.began for item in mine if item.is_durable] or [0.0]
        figures[kind] = {
            "acknowledged": sum(item.is_durable for item in mine),
            "not_2xx": sum(not 200 <= item.status < 300 for item in mine),  # noqa: PLR2004 HTTP's successes
            "not_logged": sum(200 <= item.status < 300 and not item.is_durable for item in mine),  # noqa: PLR2004 as above
            "p50_ms": 1000 * percentile(waits, 0.5),
            "p99_ms": 1000 * percentile(waits, 0.99),
            "longest_ms": 1000 * longest(world.told, kind, began, ended),
        }
    return figures


def _verdict(world: World) -> dict[str, Any]:
    told = [item for item in world.told if item.is_durable]
    chats = {item.key for item in told if item.kind == "chat"}
    said = {item.key for item in told if item.kind == "feedback"}
    with world.database.snapshot() as connection:
        rows = connection.execute(select(generation.c.completion_id, generation.c.choice, generation.c.revision)).all()
        revisions = {sample_key(row.completion_id, row.choice): row.revision for row in rows}
        joined = Counter(connection.execute(select(signal.c.id)).scalars())
        scored = Counter((row.key, row.revision) for row in connection.execute(select(score.c.key, score.c.revision)))
        dead = len(connection.execute(select(dead_letter)).all())
    on_log = Counter(
        record.key for partition, end in world.log.ends(GENERATIONS).items() for record in _all(world, partition, end)
    )
    result = audit(world.database, world.log, world.clients())
    lost = len(chats - revisions.keys()) + len(said - joined.keys())
    twice = sum(count > 1 for count in joined.values()) + sum(count > 1 for count in scored.values())
    twice += sum(revision > 1 for revision in revisions.values())  # one signal each, and no window ends meanwhile
    spool = re.findall(r"kafka is away|waits on disk|spool", world.spooled())
    return {
        "acknowledged": {"generations": len(chats), "signals": len(said)},
        "lost": lost,
        "applied_twice": twice,
        "appended_twice": sum(count > 1 for count in on_log.values()),
        "dead_letters": dead,
        "balanced": result.balanced,
        "problems": list(result.problems),
        "lines_about_the_spool": len(spool),
        "good": lost == 0 and twice == 0 and dead == 0 and result.balanced and bool(chats) and bool(said),
    }


def _all(world: World, partition: int, end: int) -> list[Any]:
    records: list[Any] = []
    while len(records) < end and (more := world.log.read(GENERATIONS, partition, len(records), 1000)):
        records += more
    return records


def _print(figures: dict[str, Any]) -> None:
    columns = ["phase", "s", "chats", "longest ms", "not 2xx", "signals", "longest ms", "not 2xx"]
    rows = [
        [
            item["phase"],
            item["seconds"],
            *(item["chat"][name] for name in ("acknowledged", "longest_ms", "not_2xx")),
            *(item["feedback"][name] for name in ("acknowledged", "longest_ms", "not_2xx")),
        ]
        for item in figures["phases"]
    ]
    print_table("three brokers, one lost at a time", columns, rows)
    for name, value in figures.items():
        if name != "phases":
            print(f"{name}: {value}")


if __name__ == "__main__":
    sys.exit(main())
