"""Requests that share an append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.event_log import Message
from runtime.log.local import LocalLog
from services.inference.recorder import Recorder
from tests.fakes import a_generation, everything


class Gated(LocalLog):
    """A log that appends once its gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_entered, self.gate = threading.Event(), threading.Event()

    def append(self, messages: Sequence[Message]) -> None:
        self.is_entered.set()
        self.gate.wait(10)
        super().append(messages)


async def test_who_leaves_takes_nobody_elses_record_along(tmp_path: Path) -> None:
    log = Gated(tmp_path)
    recorder = Recorder(log)
    turns = [a_generation() for _ in range(3)]
    first = asyncio.create_task(recorder.record(turns[:1]))
    await asyncio.to_thread(log.is_entered.wait, 10)
    leaving, staying = (asyncio.create_task(recorder.record([turn])) for turn in turns[1:])
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    log.gate.set()
    assert (await first, await staying) == (True, True)
    await recorder.close()
    assert {record.key for record in everything(log, "generations")} == {turn.key for turn in turns}
    assert recorder.num_lost == 0
    log.close()
