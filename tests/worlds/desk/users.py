"""People at the front desk: a process of its own that reaches Millrace over HTTP, and does every task in turn.

In: the endpoint, through the `openai` SDK, and the feedback API. Out: the users' own list, as the demo's users keep it
(`examples/reservations/users.py`), with the task of each answer. A third of them say nothing; some read a stream, some say it twice.
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
from tests.worlds.desk.work import SEED, TASKS, DeskWork, pieces

SILENT, STREAMED, TWICE = 0.3, 0.3, 0.1


class DeskUsers:
    """A number of people who work at the same time until told to stop: once the file `stop` exists."""

    def __init__(self, url: str, key: str, model: str, *, seed: int, out: Path, stop: Path, pace: float) -> None:
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
        self._feedback = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0)
        self._model = model
        self._random = random.Random(seed)
        self._work = [pieces(task, "users") for task in TASKS]
        self._out = out.open("a", buffering=1)
        self._stop = stop
        self._pace = pace

    async def run(self, num_users: int) -> None:
        """Everybody works until the end."""
        await asyncio.gather(*map(self._user, range(num_users)))
        await self._client.close()
        await self._feedback.aclose()
        self._out.close()

    async def _user(self, number: int) -> None:
        await asyncio.sleep(self._random.random() * self._pace)
        turn = number
        while not self._is_over():
            await self._visit(f"person-{number}-{turn % 20}", next(self._work[turn % len(self._work)]))
            turn += 1
            await asyncio.sleep(self._pace * self._random.uniform(0.5, 1.5))

    def _is_over(self) -> bool:
        return self._stop.exists()

    async def _visit(self, person: str, piece: DeskWork) -> None:
        ask = self._stream if self._random.random() < STREAMED else self._ask
        try:
            completion_id, version, text = await ask(
                model=self._model,
                messages=[{"role": "user", "content": piece.text}],
                metadata={"task": piece.task},
                user=person,
            )
        except (openai.OpenAIError, httpx.HTTPError) as error:
            self._note(kind="failed", what=f"{type(error).__name__}: {error}")
            return
        right = piece.is_right(text)
        self._note(kind="generation", key=f"{completion_id}:0", version=version, right=right, task=piece.task)
        if self._random.random() >= SILENT:
            await self._say(person, completion_id, right=right)

    async def _ask(self, **fields: Any) -> tuple[str, int, str]:
        """Id, version and text of an answer."""
        answer: Any = await self._client.chat.completions.create(**fields)
        return answer.id, answer.policy_version, answer.choices[0].message.content or ""

    async def _stream(self, **fields: Any) -> tuple[str, int, str]:
        """The same of a stream, at its end: only that promises that the answer is in the log."""
        completion_id, version, text = "", 0, ""
        async for chunk in await self._client.chat.completions.create(stream=True, **fields):
            completion_id, version = chunk.id, chunk.policy_version
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return completion_id, version, text

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
            return
        self._note(kind="signal", id=body["id"], key=f"{completion_id}:0", name="accepted", positive=right)
        if self._random.random() < TWICE:
            await send_signal(self._feedback, body)

    def _note(self, **item: object) -> None:
        self._out.write(json.dumps({"at": time.time(), **item}) + "\n")


def main() -> None:
    """Run a crowd from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where Millrace answers, without /v1")
    parser.add_argument("--key", required=True, help="an app key")
    parser.add_argument("--model", default="desk", help="name of the policy")
    parser.add_argument("--seed", type=int, default=SEED, help="of their habits")
    parser.add_argument("--users", type=int, default=8, help="how many work at the same time")
    parser.add_argument("--pace", type=float, default=0.8, help="seconds between two visits of a person")
    parser.add_argument("--out", type=Path, required=True, help="the users' own list")
    parser.add_argument("--stop", type=Path, required=True, help="the file whose appearance ends the work")
    options = parser.parse_args()
    crowd = DeskUsers(
        options.url,
        options.key,
        options.model,
        seed=options.seed,
        out=options.out,
        stop=options.stop,
        pace=options.pace,
    )
    asyncio.run(crowd.run(options.users))


if __name__ == "__main__":
    main()
