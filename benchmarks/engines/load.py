"""Requests for any engine: the same prompts and lengths for each. In: a URL. Out: tokens, log-probs and times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import httpx
import msgspec
import numpy as np

from contracts.sampling import Sampling
from engines.own.kind import own_body
from engines.token_route import PATH, read_event
from engines.wire import EngineRequest
from services.inference.engine.connection import data_of

_PROMPT_TOKENS, _VOCABULARY = 32, 700
_TIMEOUT = 600.0
_JSON = {"content-type": "application/json"}


class EngineSampled(NamedTuple):
    """An answer."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


class LoadFigures(NamedTuple):
    """A run at one number of requests in flight."""

    tokens_per_second: float
    answers: list[EngineSampled]
    num_failed: int


def prompts(count: int) -> list[list[int]]:
    """Random prompts; the same for each engine."""
    draws = np.random.default_rng(20)
    return [draws.integers(3, _VOCABULARY, _PROMPT_TOKENS).tolist() for _ in range(count)]


async def run_load(
    url: str, headers: Mapping[str, str], asked: Sequence[list[int]], *, in_flight: int, max_tokens: int, policy: str
) -> LoadFigures:
    """Answer every prompt, `in_flight` at a time."""
    waiting, answers, failed = list(enumerate(asked)), [], 0
    limits = httpx.Limits(max_connections=in_flight)

    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT, limits=limits) as client:

        async def work() -> None:
            nonlocal failed
            while waiting:
                number, prompt = waiting.pop()
                try:
                    answers.append(await _answer(client, policy, prompt, number, max_tokens))
                except (httpx.HTTPError, msgspec.MsgspecError):
                    failed += 1

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        seconds = time.perf_counter() - begun
    return LoadFigures(sum(len(answer.tokens) for answer in answers) / seconds, answers, failed)


async def _answer(
    client: httpx.AsyncClient, policy: str, prompt: list[int], number: int, max_tokens: int
) -> EngineSampled:
    request = EngineRequest(
        policy, prompt, Sampling(temperature=1.0, max_tokens=max_tokens, seed=number), f"b-{number}"
    )
    found = EngineSampled(prompt, [], [])
    async with client.stream("POST", PATH, content=own_body(request), headers=_JSON) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            data = data_of(line.encode()) if line and "[DONE]" not in line else None
            if data is not None:
                piece = read_event(data, 0)
                found.tokens.extend(token.id for token in piece.tokens)
                found.logprobs.extend(token.logprob for token in piece.tokens)
    return found
