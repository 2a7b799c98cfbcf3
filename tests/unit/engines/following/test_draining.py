"""A replica that is told to drain says that it ends, and goes on until it is told to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.engines import EngineReplica
from engines.following.process import Host, follow
from runtime.listening import DRAIN
from runtime.operations import Operations
from runtime.settings import Settings

ROW = EngineReplica(
    "vllm-1", "p", "http://h:1", "vllm", "local", "starting", {}, frozenset(), "i", "vllm", "float32", 0.0
)


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.getsignal(DRAIN)
    yield
    signal.signal(DRAIN, before)


class FakeFollower:
    """Serves from its second step on."""

    def __init__(self) -> None:
        self.row, self.server = ROW, SimpleNamespace(renew=lambda: None, end=lambda: None)

    def step(self, now: float) -> None:
        assert now
        self.row = ROW._replace(status="serving")


class FakeRows:
    """What inference would read; drives the test along."""

    def __init__(self, stop: threading.Event) -> None:
        self.told, self.ready, self._stop = list[str](), list[bool](), stop

    def announce(self, row: EngineReplica) -> None:
        self.told.append(row.status)
        self.ready.append(not Operations().problems())
        if row.status == "serving":
            os.kill(os.getpid(), DRAIN)
        if row.status == "ending":
            self._stop.set()

    def withdraw(self, name: str) -> None:
        self.told.append(f"without {name}")


@pytest.mark.usefixtures("handler")
def test_a_replica_that_drains_says_so_and_is_ready_only_while_it_serves(tmp_path: Path) -> None:
    stop = threading.Event()
    rows, closed = FakeRows(stop), list[str]()
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(tmp_path / "t.toml",))
    host = SimpleNamespace(settings=settings, rows=rows, copy=SimpleNamespace(close=lambda: closed.append("copy")))

    follow(cast("Host", host), [cast("Any", FakeFollower())], stop)

    statuses = [told for told in dict.fromkeys(rows.told) if told != "starting"]
    assert statuses == ["serving", "ending", "without vllm-1"]
    assert rows.ready[rows.told.index("serving")]
    assert closed == ["copy"]
