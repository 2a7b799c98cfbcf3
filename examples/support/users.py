"""Simulated customers of the shop, its agent and its tool server: a process of its own that reaches Millrace only over HTTP.

In: the endpoint, through the agent, and the feedback API. Out: one signal about a session, some seconds after its end, and the
customers' own list, as the demo's users keep it (`examples/reservations/users.py`); `key` of a signal is the session's last answer.

Habits: a fifth never say how it ended, one in a hundred says that nothing was solved whatever happened. Nobody says anything while the
agent works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import uuid
from pathlib import Path

import httpx
import openai

from examples.feedback import send_signal
from examples.pace import Pace, add_pace_options, pace_of
from examples.support.agent import Agent, Worked
from examples.support.cases import SupportCase, cases
from examples.support.shop import is_solved
from examples.support.tool_server import OpenShop, tool_server

SILENT, GRUMBLER, LATER = 0.2, 0.01, 0.3
SOON_SECONDS, LATER_SECONDS = (0.5, 2.0), (4.0, 8.0)


class Customers:
    """A number of customers who are served at the same time."""

    def __init__(self, feedback_url: str, key: str, agent: Agent, shop: OpenShop, *, seed: int, out: Path) -> None:
        self._feedback = httpx.AsyncClient(
            base_url=feedback_url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0
        )
        self._agent, self._shop = agent, shop
        self._random = random.Random(seed)
        self._cases = cases("users", seed)
        self._out = out.open("a", buffering=1)
        self._later: set[asyncio.Task[None]] = set()

    async def run(self, number: int, pace: Pace, seconds: float) -> None:
        """They come for `seconds`, or until no visit is left; then wait until those who come back have done so."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._place(pace, end) for _ in range(number)))
        await asyncio.gather(*self._later)
        await self._feedback.aclose()
        self._out.close()

    async def _place(self, pace: Pace, end: float) -> None:
        """One customer after another, at that pace."""
        await asyncio.sleep(self._random.random() * pace.seconds)
        while time.monotonic() < end and pace.take():
            started = time.monotonic()
            await self._visit(next(self._cases))
            rest = pace.seconds * self._random.uniform(0.5, 1.5) - (time.monotonic() - started)
            await asyncio.sleep(max(0.0, rest))

    async def _visit(self, case: SupportCase) -> None:
        session = f"customer-{case.customer}-{uuid.UUID(int=self._random.getrandbits(128))}"
        self._shop.open(case)
        try:
            worked = await self._agent.work(case.text, session)
        except (openai.OpenAIError, httpx.TransportError) as error:
            self._note(kind="failed", what=f"{type(error).__name__}: {error}")
            return
        finally:
            done = self._shop.close(case)
        solved = is_solved(case, done, worked.reply)
        for answer in worked.answers:
            key = f"{answer.completion_id}:0"
            self._note(kind="generation", key=key, version=answer.version, at=answer.at, right=solved)
        if self._random.random() >= SILENT:
            comes_back = self._come_back(case, session, worked, solved=solved)
            task = asyncio.create_task(comes_back)
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _come_back(self, case: SupportCase, session: str, worked: Worked, *, solved: bool) -> None:
        """Say how the session ended, until that is acknowledged. The id makes retries idempotent."""
        says = solved and self._random.random() >= GRUMBLER
        seconds = LATER_SECONDS if self._random.random() < LATER else SOON_SECONDS
        body = {
            "id": f"fb_{uuid.UUID(int=self._random.getrandbits(128))}",
            "session_id": session,
            "submitter": {"id": f"customer-{case.customer}", "kind": "user"},
            "name": "solved",
            "value": says,
        }
        await asyncio.sleep(self._random.uniform(*seconds))
        if await self._post({**body, "at": time.time()}):
            last = f"{worked.answers[-1].completion_id}:0"
            self._note(kind="signal", id=body["id"], key=last, name="solved", positive=says, calls=len(worked.answers))

    async def _post(self, body: dict[str, object]) -> bool:
        reason = await send_signal(self._feedback, body)
        if reason:
            self._note(kind="failed", what=f"feedback: {reason}")
        return not reason

    def _note(self, **item: object) -> None:
        self._out.write(json.dumps({"at": time.time(), **item}) + "\n")


async def _serve(options: argparse.Namespace, shop: OpenShop) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{options.url}/v1", api_key=options.key) as client,
        httpx.AsyncClient(base_url=shop.url) as tools,
    ):
        agent = Agent(client, tools, model=options.model)
        feedback_url = options.feedback_url or options.url
        customers = Customers(feedback_url, options.key, agent, shop, seed=options.seed, out=options.out)
        await customers.run(options.users, pace_of(options), options.seconds)


def main() -> None:
    """Run the shop from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where Millrace answers, without /v1")
    parser.add_argument("--feedback-url", help="where to send feedback, if it is another address")
    parser.add_argument("--key", required=True, help="an app key")
    parser.add_argument("--model", default="support", help="name of the policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long customers come")
    parser.add_argument("--users", type=int, default=16, help="how many are served at the same time")
    add_pace_options(parser, 4.0)
    parser.add_argument("--out", type=Path, required=True, help="file for the customers' own list")
    options = parser.parse_args()
    with tool_server() as shop:
        asyncio.run(_serve(options, shop))


if __name__ == "__main__":
    main()
