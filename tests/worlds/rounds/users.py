"""Owners of halls: a process of its own that lets an agent walk through them, and says at the end whether the hall is in order.

In: the endpoint, through the `openai` SDK, and the feedback API. Out: one signal about each session, and the owners' own list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from collections import deque
from pathlib import Path
from random import Random

import httpx
import openai

from examples.feedback import send_signal
from examples.support.agent import Agent
from tests.worlds.rounds.hall import NUM_SHELVES, OFFERED, Hall

WINDOW = 40


class Owners:
    """Several at the same time, one round after another, until the last `WINDOW` went well enough, or the time is over."""

    def __init__(self, url: str, key: str, *, seed: int, out: Path, enough: float) -> None:
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=60.0)
        self._feedback = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0)
        self._random = Random(seed)
        self._out = out.open("a", buffering=1)
        self._enough = enough
        self._lately: deque[bool] = deque(maxlen=WINDOW)

    async def run(self, number: int, seconds: float) -> None:
        """They begin no round after so many seconds."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._owner(end) for _ in range(number)))
        await self._client.close()
        await self._feedback.aclose()
        self._out.close()

    async def _owner(self, end: float) -> None:
        while time.monotonic() < end and not self._is_content():
            await self._round(Hall(self._random))

    def _is_content(self) -> bool:
        return len(self._lately) == WINDOW and sum(self._lately) >= self._enough * WINDOW

    async def _round(self, hall: Hall) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, text=json.dumps(hall.call(request.url.path.rpartition("/")[2])))

        session = str(uuid.UUID(int=self._random.getrandbits(128)))
        async with httpx.AsyncClient(base_url="http://hall", transport=httpx.MockTransport(answer)) as tools:
            agent = Agent(
                self._client, tools, task="rounds", offered=OFFERED, most_calls=NUM_SHELVES + 1, model="rounds"
            )
            try:
                worked = await agent.work(hall.text, session)
            except openai.OpenAIError as error:
                self._note(kind="failed", what=f"{type(error).__name__}: {error}")
                return
        good = hall.is_in_order(worked.reply)
        self._lately.append(good)
        for each in worked.answers:
            self._note(kind="generation", key=f"{each.completion_id}:0", version=each.version, right=good)
        body = {
            "id": f"fb_{uuid.UUID(int=self._random.getrandbits(128))}",
            "session_id": session,
            "submitter": {"id": f"owner-{session}", "kind": "user"},
            "at": time.time(),
            "name": "solved",
            "value": good,
        }
        if reason := await send_signal(self._feedback, body):
            self._note(kind="failed", what=f"feedback: {reason}")
        else:
            last = f"{worked.answers[-1].completion_id}:0"
            self._note(kind="signal", id=body["id"], key=last, name="solved", positive=good, calls=len(worked.answers))

    def _note(self, **item: object) -> None:
        self._out.write(json.dumps({"at": time.time(), **item}) + "\n")


def main() -> None:
    """Run owners from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where Millrace answers, without /v1")
    parser.add_argument("--key", required=True, help="an app key")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="no round begins later")
    parser.add_argument("--enough", type=float, default=1.0, help="the share of good rounds at which they stop")
    parser.add_argument("--users", type=int, default=8, help="how many owners at the same time")
    parser.add_argument("--out", type=Path, required=True, help="the owners' own list")
    options = parser.parse_args()
    owners = Owners(options.url, options.key, seed=options.seed, out=options.out, enough=options.enough)
    asyncio.run(owners.run(options.users, options.seconds))


if __name__ == "__main__":
    main()
