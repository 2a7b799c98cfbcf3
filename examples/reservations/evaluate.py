"""Held-out accuracy of one pinned version: greedy, over HTTP, every field exact. The requests are not logged."""

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
    """The accuracy of a version on the held-out sentences. `first_at`: time of its first answer, in epoch seconds."""

    version: int
    accuracy: float
    first_at: float


def evaluate(url: str, operator_key: str, policy: str, version: int, *, seed: int = 0) -> Evaluation:
    """Send the held-out sentences to `policy@vN`."""
    return asyncio.run(_evaluate(url, operator_key, policy, version, seed))


async def _evaluate(url: str, key: str, policy: str, version: int, seed: int) -> Evaluation:
    held_out = list(itertools.islice(requests("held_out", seed), NUM_HELD_OUT))
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

        answers = await asyncio.gather(*map(right, held_out))
    return Evaluation(version, sum(good for good, _ in answers) / len(answers), min(at for _, at in answers))
