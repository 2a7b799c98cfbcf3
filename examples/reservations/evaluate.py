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
    """How a version did on the held-out cases, which are the same for every version."""

    version: int
    right: tuple[bool, ...]
    """By case."""
    first_at: float
    """Time of its first answer, in epoch seconds."""
    answers_per_second: float

    @property
    def accuracy(self) -> float:
        """Share of the cases that were right."""
        return sum(self.right) / len(self.right)


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

        started = time.monotonic()
        answers = await asyncio.gather(*map(right, held_out))
        speed = len(answers) / (time.monotonic() - started)
    return Evaluation(version, tuple(good for good, _ in answers), min(at for _, at in answers), speed)
