"""Requests at a fixed rate from an unmodified client, whatever becomes of the ones before; every other one is streamed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import openai

_MAX_TOKENS, _TIMEOUT_SECONDS = 8, 60.0
_FINISHED = {"stop", "length"}


class EndedAnswer(NamedTuple):
    """How a request ended, and how long it took."""

    how: str
    completion_id: str
    seconds: float


class RegionLoad(NamedTuple):
    """All requests of a run."""

    ended: list[EndedAnswer]

    @property
    def ends(self) -> Counter[str]:
        """How many ended how: `answered`, or the error."""
        return Counter(one.how for one in self.ended)

    @property
    def ids(self) -> list[str]:
        """The completions that a client saw."""
        return [one.completion_id for one in self.ended if one.how == "answered"]

    @property
    def longest_seconds(self) -> float:
        """Of all requests."""
        return max(one.seconds for one in self.ended)


class RegionEndpoint(NamedTuple):
    """Whom to ask."""

    url: str
    key: str
    model: str


def open_loop(
    endpoint: RegionEndpoint, rate: float, seconds: float, after: float = 0.0, call: Callable[[], None] = lambda: None
) -> RegionLoad:
    """Send `rate` requests a second for so many seconds, and call `call` after `after` seconds."""

    async def send() -> RegionLoad:
        async with openai.AsyncOpenAI(
            base_url=f"{endpoint.url}/v1", api_key=endpoint.key, max_retries=0, timeout=_TIMEOUT_SECONDS
        ) as client:
            started, asked = time.monotonic(), list[asyncio.Task[EndedAnswer]]()
            calling = asyncio.get_running_loop().call_later(after, call)
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                asked.append(asyncio.create_task(_ask(client, endpoint.model, number)))
            calling.cancel()
            return RegionLoad(list(await asyncio.gather(*asked)))

    return asyncio.run(send())


async def _ask(client: openai.AsyncOpenAI, model: str, number: int) -> EndedAnswer:
    content, started = f"Book a table for {number % 9 + 1} at 19:00, name Anna", time.monotonic()
    metadata, name, reason = {"session_id": f"guest {number % 40}"}, "", None
    try:
        if number % 2:
            stream = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": content}], metadata=metadata, max_tokens=_MAX_TOKENS, stream=True
            )  # fmt: skip
            async for chunk in stream:
                name = chunk.id
                reason = chunk.choices[0].finish_reason if chunk.choices else reason
        else:
            answer = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": content}], metadata=metadata, max_tokens=_MAX_TOKENS
            )
            name, reason = answer.id, answer.choices[0].finish_reason
    except openai.APIError as error:
        return EndedAnswer(f"{type(error).__name__}: {error} ({error.__cause__!r})", name, time.monotonic() - started)
    how = "answered" if reason in _FINISHED else f"ended with {reason}"
    return EndedAnswer(how, name, time.monotonic() - started)
