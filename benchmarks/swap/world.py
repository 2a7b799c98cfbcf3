"""What `benchmarks.swap` runs on: a chain of versions in a folder, an engine that serves them, and requests without a pause.

In: a base, and the order of versions. Out: the cost of each swap, and every answer. Waits for: the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contracts.errors import MillraceError, Unavailable
from services.engine.engine import Engine
from services.engine.repository import SwapRecord, added_gap
from services.engine.sampling import GenerateRequest, SamplingParams
from tests.worlds.engines.labels import LabelledAnswer
from tests.worlds.engines.own import POLICY, Job, make_jobs
from tests.worlds.versions import moved, publish_next
from weights.codec.history import History
from weights.stores.store import WeightStore
from weights.tensors import Tensors

LIVE = "live"
_FORTH_AND_BACK = (1, 1, 1, 1, -1)
_SHORTEST, _LONGEST = 32, 96
_BETWEEN_SECONDS = 0.05
_NUM_JOBS = 1000


class SwapOutcome(NamedTuple):
    """The result of a run under load."""

    records: list[SwapRecord]
    answers: list[LabelledAnswer]
    num_failed: int
    """Answers that ended in an error, or with fewer tokens than were asked for."""
    quiet_gaps: list[float]
    """As `SwapRecord.gap_seconds`, at moments halfway between two swaps: what the same statistic is without a swap."""


def way(num_swaps: int) -> list[int]:
    """The version after each of `num_swaps` swaps, from version 0: four steps forward and one back, repeated."""
    moves = itertools.islice(itertools.cycle(_FORTH_AND_BACK), num_swaps)
    return list(itertools.accumulate(moves))


def publish_chain(store: WeightStore, base: Tensors, num_versions: int, density: float) -> None:
    """Version 0, and `num_versions` more, each a step from the one before."""
    history, parent, target = History(), base, base
    for version in range(num_versions + 1):
        if version:
            parent, target = target, moved(target, density, seed=version)
        publish_next(store, POLICY, version, base=parent, target=target, history=history)


def swap_under_load(engine: Engine, versions: Sequence[int], base: Path, num_streams: int) -> SwapOutcome:
    """Bring the live arm to one version after the other while `num_streams` answers are always being made."""
    return asyncio.run(_Load(engine, base).run(versions, num_streams))


class _Load:
    def __init__(self, engine: Engine, base: Path) -> None:
        self._engine = engine
        self._jobs = itertools.cycle(make_jobs(base, _NUM_JOBS, shortest=_SHORTEST, longest=_LONGEST, seed=0))
        self._answers: list[LabelledAnswer] = []
        self._token_times: list[list[float]] = []
        self._num_failed = 0
        self._is_over = False

    async def run(self, versions: Sequence[int], num_streams: int) -> SwapOutcome:
        streams = [asyncio.create_task(self._stream()) for _ in range(num_streams)]
        while len(self._answers) < 2 * num_streams:  # noqa: ASYNC110 the first answers warm up
            await asyncio.sleep(_BETWEEN_SECONDS)
        records, moments = [], []
        for version in versions:
            record = await asyncio.to_thread(self._engine.update, LIVE, version)
            if record is None:
                raise Unavailable(f"version {version} came without a swap")
            records.append(record)
            await asyncio.sleep(_BETWEEN_SECONDS / 2)
            moments.append(time.perf_counter())
            await asyncio.sleep(_BETWEEN_SECONDS / 2)
        self._is_over = True
        await asyncio.gather(*streams)
        gaps = [added_gap(_in_flight(self._token_times, moment), moment) for moment in moments]
        return SwapOutcome(records, self._answers, self._num_failed, [gap for gap in gaps if gap is not None])

    async def _stream(self) -> None:
        while not self._is_over:
            job = next(self._jobs)
            try:
                await self._answer(job)
            except MillraceError:
                self._num_failed += 1

    async def _answer(self, job: Job) -> None:
        params = SamplingParams(max_tokens=job.num_tokens, ignore_eos=True)
        request = GenerateRequest(model=POLICY, token_ids=job.prompt, sampling_params=params)
        ticket = self._engine.resolve(POLICY).submit(request)
        chunk = await anext(aiter(ticket.chunks()))
        self._token_times.append(ticket.token_times)
        self._answers.append(LabelledAnswer(job.prompt, chunk.token_ids, chunk.logprobs, chunk.spans))
        if (len(chunk.token_ids), len(chunk.logprobs)) != (job.num_tokens, job.num_tokens):
            self._num_failed += 1


def _in_flight(token_times: list[list[float]], moment: float) -> list[list[float]]:
    return [times for times in token_times if times[0] <= moment < times[-1]]
