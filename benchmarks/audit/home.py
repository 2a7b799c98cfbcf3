"""A filled home: a database and a log, and a note about both, so that another run takes them as they are."""

from __future__ import annotations

import json
import random
import secrets
import time
from pathlib import Path
from typing import Any

from benchmarks.audit.fill import fill
from contracts.event_log import EventLog
from contracts.topics import GENERATIONS
from runtime.database import Database, create_database
from runtime.days import migrate
from runtime.log.local import LocalLog

KAFKA = "kafka://"


def filled_home(place: Path, num: int, server: str | None, kafka: str | None) -> dict[str, Any]:
    """What an earlier run noted about this home, or what a new one has."""
    note = place / "filled.json"
    if note.exists():
        held: dict[str, Any] = json.loads(note.read_text())
        return held
    place.mkdir(parents=True, exist_ok=True)
    name = f"millrace_audit_{secrets.token_hex(4)}"
    url = create_database(server, name) if server else f"sqlite:///{place.absolute()}/millrace.db"
    where = f"{KAFKA}{kafka}/{name}." if kafka else str(place.absolute() / "log")
    database, log = Database(url), open_log(where)
    migrate(database)
    started = time.perf_counter()
    file = None if kafka else place / "log" / f"{GENERATIONS}.db"
    bytes_of_record = fill(database, log, num, random.Random(1), file)  # noqa: S311 the same data again
    database.close()
    log.close()
    filled = {
        "url": url,
        "log": where,
        "generations": num,
        "record_bytes": bytes_of_record,
        "fill_seconds": round(time.perf_counter() - started, 1),
    }
    note.write_text(json.dumps(filled))
    return filled


def open_log(where: str) -> EventLog:
    """The log in a folder, or at kafka://HOST:PORT/PREFIX."""
    if not where.startswith(KAFKA):
        return LocalLog(Path(where))
    from runtime.log.kafka import KafkaLog  # noqa: PLC0415 as in runtime/settings.py

    server, _, prefix = where.removeprefix(KAFKA).partition("/")
    return KafkaLog(server, prefix=prefix, timeout=60.0)
