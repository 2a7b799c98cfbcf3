"""Held-out accuracy of one pinned version: greedy, over HTTP, every field exact, never logged."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import NamedTuple

import openai

from examples.reservations.sentences import Request, requests

NUM_HELD_OUT = 500
_CONCURRENCY = 32


class Evaluation(NamedTuple):
    """What a version answered to the held-out sentences. `first_at`: when its first answer came, epoch seconds."""

    version: int
    accuracy: float
    first_at: float


def evaluate(url: str, operator_key: str, policy: str, version: int, *, seed: int = 0) -> Evaluation:
    """Ask `policy@vN` the held-out sentences."""
    return asyncio.run(_evaluate(url, operator_key, policy, version, seed))


async def _evaluate(url: str, key: str, policy: str, version: int, seed: int) -> Evaluation:
    asked = list(itertools.islice(requests("held_out", seed), NUM_HELD_OUT))
    gate = asyncio.Semaphore(_CONCURRENCY)
    headers = {"x-millrace-purpose": "rollout"}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers=headers) as client:

        async def right(request: Request) -> tuple[bool, float]:
            async with gate:
                answer = await client.chat.completions.create(
                    model=f"{policy}@v{version}",
                    messages=[{"role": "user", "content": request.sentence}],
                    temperature=0,
                    max_tokens=32,
                    store=False,
                )
            return answer.choices[0].message.content == request.booking.json(), time.time()

        answers = await asyncio.gather(*map(right, asked))
    return Evaluation(version, sum(good for good, _ in answers) / len(answers), min(at for _, at in answers))
