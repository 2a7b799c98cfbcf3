"""Times every write transaction of a process, from its lock (SQLite) or first statement (PostgreSQL) to the end of its commit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

_here = threading.local()
_seconds: list[float] = []


def begin_timing() -> None:
    """From now on, until the process ends."""
    commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit

    def note_begin(*arguments: Any) -> None:
        if getattr(_here, "begun_at", None) is None or str(arguments[2]).startswith("BEGIN"):
            _here.begun_at = time.perf_counter()

    def note_end(_connection: Any) -> None:
        _here.begun_at = None

    def timed(self: DefaultDialect, connection: Any) -> None:
        commit(self, connection)
        if (begun_at := getattr(_here, "begun_at", None)) is not None:
            _seconds.append(time.perf_counter() - begun_at)
        _here.begun_at = None

    event.listen(Engine, "after_cursor_execute", note_begin)
    event.listen(Engine, "rollback", note_end)
    DefaultDialect.do_commit = timed  # type: ignore[method-assign] # SQLAlchemy tells nobody when a commit ends


def save_timing(path: Path) -> None:
    """Write what was measured."""
    path.write_text(json.dumps(_seconds))
