"""Requests that share an append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from contracts.event_log import Message
from contracts.packing import experts_of, experts_problem
from contracts.sampling import ExpertShape
from engines.wire import RecordedExperts
from runtime.log.local import LocalLog
from services.inference.recorder import Recorder, experts_of_answer
from tests.fakes import a_generation, everything


class Gated(LocalLog):
    """A log that appends once its gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_entered, self.gate = threading.Event(), threading.Event()

    def append(self, messages: Sequence[Message]) -> None:
        self.is_entered.set()
        self.gate.wait(60.0)
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


CHOICES = np.arange(4 * 2 * 2).reshape(4, 2, 2).astype("<u2")
RECORDED = RecordedExperts(CHOICES.tobytes(), ExpertShape(4, 2, 2))


@pytest.mark.parametrize("num_tokens", [5, 4, 2])
def test_experts_of_the_tokens_that_belong_to_the_answer_are_logged(num_tokens: int) -> None:
    packed, shape = experts_of_answer(RECORDED, num_tokens)
    assert shape == ExpertShape(num_tokens - 1, 2, 2)
    assert experts_problem(packed, shape, num_tokens) == ""
    np.testing.assert_array_equal(experts_of(packed, shape), CHOICES[: num_tokens - 1])


LONG = np.random.default_rng(0).integers(0, 2**16, 300_000).astype("<u2").tobytes()


@pytest.mark.parametrize(
    ("recorded", "num_tokens"),
    [
        (None, 5),
        (RECORDED, 6),
        (RECORDED, 1),
        (RecordedExperts(b"", ExpertShape(4, 0, 2)), 5),
        (RecordedExperts(LONG, ExpertShape(3000, 10, 10)), 3001),
    ],
)
def test_experts_that_are_incomplete_or_too_large_for_the_log_are_left_out(
    recorded: RecordedExperts | None, num_tokens: int
) -> None:
    assert experts_of_answer(recorded, num_tokens) == (b"", None)
