"""The two arms of `benchmarks.engine`: our engine without HTTP, and static left-padded batches of `generate`.

In: jobs, in order. Out: useful tokens a second. Waits for: every answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch

from contracts.errors import InvalidValue
from services.engine.engine import Engine
from services.engine.sampling import GenerateRequest, SamplingParams
from tests.worlds.engines.own import POLICY, Job


class EngineSpeed(NamedTuple):
    """Useful tokens a second, by the clock and by the processor: the latter holds on a machine that others use too."""

    by_clock: float
    by_processor: float


class MillraceArm:
    """Up to `size` requests in flight; the next one starts when one ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, jobs: Sequence[Job], size: int) -> EngineSpeed:
        """Over all jobs."""
        started, computed = perf_counter(), process_time()
        num_tokens = asyncio.run(self._run(jobs, size))
        return EngineSpeed(num_tokens / (perf_counter() - started), num_tokens / (process_time() - computed))

    async def _run(self, jobs: Sequence[Job], size: int) -> int:
        places = asyncio.Semaphore(size)

        async def answer(job: Job) -> int:
            async with places:
                params = SamplingParams(max_tokens=job.num_tokens, ignore_eos=True)
                request = GenerateRequest(model=POLICY, token_ids=job.prompt, sampling_params=params)
                ticket = self._engine.resolve(POLICY).submit(request)
                chunk = await anext(aiter(ticket.chunks()))
            _check(len(chunk.token_ids), len(chunk.logprobs), job)
            return len(chunk.token_ids)

        return sum(await asyncio.gather(*map(answer, jobs)))


class GenerateArm:
    """Batches of `size` in order of arrival; each ends with its longest answer, the surplus is not counted."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pad_id = model.generation_config.pad_token_id or 0

    def run(self, jobs: Sequence[Job], size: int) -> EngineSpeed:
        """Over all jobs."""
        started, computed = perf_counter(), process_time()
        num_tokens = sum(self._batch(jobs[place : place + size]) for place in range(0, len(jobs), size))
        return EngineSpeed(num_tokens / (perf_counter() - started), num_tokens / (process_time() - computed))

    def _batch(self, jobs: Sequence[Job]) -> int:
        width, longest = max(len(job.prompt) for job in jobs), max(job.num_tokens for job in jobs)
        rows = [[self._pad_id] * (width - len(job.prompt)) + job.prompt for job in jobs]
        masks = [[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in jobs]
        device = self._model.device
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(masks, device=device),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=longest,
                max_new_tokens=longest,
                pad_token_id=self._pad_id,
                return_dict_in_generate=True,
                output_scores=True,
            )
            logprobs = self._model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        token_ids, logprobs = output.sequences[:, width:].tolist(), logprobs.tolist()
        for job, ids, values in zip(jobs, token_ids, logprobs, strict=True):
            _check(len(ids[: job.num_tokens]), len(values[: job.num_tokens]), job)
        return sum(job.num_tokens for job in jobs)


def _check(num_ids: int, num_logprobs: int, job: Job) -> None:
    if (num_ids, num_logprobs) != (job.num_tokens, job.num_tokens):
        raise InvalidValue(f"{num_ids} tokens and {num_logprobs} log-probs came, {job.num_tokens} were asked for")
