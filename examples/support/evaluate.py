"""Held-out cases for one pinned version: greedy, over HTTP, with tools of their own. The requests are not logged."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid

import httpx
import openai

from examples.reservations.evaluate import Evaluation
from examples.support.agent import Agent
from examples.support.cases import SupportCase, cases
from examples.support.shop import is_solved
from examples.support.tool_server import OpenShop, tool_server

NUM_HELD_OUT = 120
_CONCURRENCY = 16


def evaluate(url: str, operator_key: str, policy: str, version: int) -> Evaluation:
    """Let `policy@vN` serve the held-out customers. Accuracy: the share of them whose problem was solved."""
    with tool_server() as shop:
        return asyncio.run(_evaluate(url, operator_key, policy, version, shop))


async def _evaluate(url: str, key: str, policy: str, version: int, shop: OpenShop) -> Evaluation:
    gate = asyncio.Semaphore(_CONCURRENCY)
    headers = {"x-millrace-purpose": "rollout"}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers=headers) as client,
        httpx.AsyncClient(base_url=shop.url) as tools,
    ):
        agent = Agent(client, tools, model=f"{policy}@v{version}", temperature=0, store=False)

        async def serve(case: SupportCase) -> tuple[bool, float, int]:
            async with gate:
                shop.open(case)
                worked = await agent.work(case.text, f"held-out-{uuid.uuid4()}")
                return is_solved(case, shop.close(case), worked.reply), worked.answers[0].at, len(worked.answers)

        started = time.monotonic()
        served = await asyncio.gather(*map(serve, itertools.islice(cases("held_out", 0), NUM_HELD_OUT)))
        speed = sum(number for _, _, number in served) / (time.monotonic() - started)
    return Evaluation(version, tuple(good for good, _, _ in served), min(at for _, at, _ in served), speed)
