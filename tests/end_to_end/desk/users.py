"""People at the front desk: a process of its own that reaches Millrace over HTTP, and does every task in turn.

In: the endpoint, through the `openai` SDK, and the feedback API. Out: the users' own list, as the demo's users keep it
(`examples/reservations/users.py`), with the task of each answer. A third of them say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import openai

from examples.feedback import send_signal
from tests.end_to_end.desk.work import TASKS, Piece

SILENT = 0.3


class Crowd:
    """A number of people who work at the same time until told to stop."""

    def __init__(self, url: str, key: str, model: str, *, seed: int, out: Path, pace: float) -> None:
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
        self._feedback = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0)
        self._model = model
        self._random = random.Random(seed)
        self._work = [stream("users", seed) for stream in TASKS.values()]
        self._out = out.open("a", buffering=1)
        self._pace = pace

    async def run(self, num_users: int, seconds: float) -> None:
        """Everybody works for so many seconds."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._user(number, end) for number in range(num_users)))
        await self._client.close()
        await self._feedback.aclose()
        self._out.close()

    async def _user(self, number: int, end: float) -> None:
        await asyncio.sleep(self._random.random() * self._pace)
        turn = number
        while time.monotonic() < end:
            await self._visit(f"person-{number}-{turn % 20}", next(self._work[turn % len(self._work)]))
            turn += 1
            await asyncio.sleep(self._pace * self._random.uniform(0.5, 1.5))

    async def _visit(self, person: str, piece: Piece) -> None:
        try:
            answer: Any = await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": piece.text}],
                metadata={"task": piece.task},
                user=person,
            )
        except openai.OpenAIError as error:
            self._note(kind="failed", what=f"{type(error).__name__}: {error}")
            return
        right = piece.is_right(answer.choices[0].message.content or "")
        key = f"{answer.id}:0"
        self._note(kind="generation", key=key, version=answer.policy_version, right=right, task=piece.task)
        if self._random.random() >= SILENT:
            await self._say(person, answer.id, right=right)

    async def _say(self, person: str, completion_id: str, *, right: bool) -> None:
        """Send a signal until it is acknowledged; the id makes a second try harmless."""
        body = {
            "id": f"fb_{uuid.UUID(int=self._random.getrandbits(128))}",
            "completion_id": completion_id,
            "submitter": {"id": person, "kind": "user"},
            "at": time.time(),
            "name": "accepted",
            "value": right,
        }
        if reason := await send_signal(self._feedback, body):
            self._note(kind="failed", what=f"feedback: {reason}")
        else:
            self._note(kind="signal", id=body["id"], key=f"{completion_id}:0", name="accepted", positive=right)

    def _note(self, **item: object) -> None:
        self._out.write(json.dumps({"at": time.time(), **item}) + "\n")


def main() -> None:
    """Run a crowd from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where Millrace answers, without /v1")
    parser.add_argument("--key", required=True, help="an app key")
    parser.add_argument("--model", default="desk", help="name of the policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long everybody works")
    parser.add_argument("--users", type=int, default=8, help="how many work at the same time")
    parser.add_argument("--pace", type=float, default=0.8, help="seconds between two visits of a person")
    parser.add_argument("--out", type=Path, required=True, help="the users' own list")
    options = parser.parse_args()
    crowd = Crowd(options.url, options.key, options.model, seed=options.seed, out=options.out, pace=options.pace)
    asyncio.run(crowd.run(options.users, options.seconds))


if __name__ == "__main__":
    main()
