"""Users of a product: a process of their own that knows what it wants and reaches Millrace only over HTTP.

usage: python -m benchmarks.products.users sums --url URL --key KEY --out FILE

Their habits and their list are those of the demo's users (`examples/reservations/users.py`). Here a signal also says whether its user is
honest: `honest` is false for a spammer, who rejects everything.
"""

# ruff: noqa: S311 simulated users need repeatable randomness, not secret randomness

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import openai

from benchmarks.products.catalogue import PRODUCTS
from benchmarks.products.questions import ExtraProduct, ProductQuestion, stream
from examples.feedback import send_signal
from examples.reservations.users import LATE, LATE_SECONDS, LEAVES, SILENT, SPAMMER, STREAMED, TWICE

_TRIES = 3
_THUMBS = 0.3


class ShownAnswer(NamedTuple):
    """An answer as a user saw it. `version`: None if nobody can tell which one made it."""

    completion_id: str
    text: str
    version: int | None


class ProductCrowd:
    """A number of users who work at the same time."""

    def __init__(self, product: ExtraProduct, url: str, key: str, *, seed: int, out: Path, pace: float) -> None:
        self._product = product
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
        self._feedback = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0)
        self._random = Random(seed)
        self._questions = stream(product, "users", seed)
        self._out = out.open("a", buffering=1)
        self._pace = pace
        self._later: set[asyncio.Task[None]] = set()

    async def run(self, num_users: int, seconds: float) -> None:
        """All users work for `seconds`; then wait until the late signals are sent."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._user(number, end) for number in range(num_users)))
        await asyncio.gather(*self._later)
        await self._client.close()
        await self._feedback.aclose()
        self._out.close()

    async def _user(self, number: int, end: float) -> None:
        await asyncio.sleep(self._random.random() * self._pace)
        while time.monotonic() < end:
            started = time.monotonic()
            await self._visit(f"user-{number}-{self._random.randrange(50)}", next(self._questions), end)
            rest = self._pace * self._random.uniform(0.5, 1.5) - (time.monotonic() - started)
            await asyncio.sleep(max(0.0, rest))

    async def _visit(self, person: str, question: ProductQuestion, end: float) -> None:
        """One question, until the user is satisfied, gives up, or gives no feedback."""
        for _ in range(_TRIES):
            try:
                seen = await self._ask(person, question)
            except openai.OpenAIError as error:
                self._note(kind="failed", what=f"{type(error).__name__}: {error}")
                return
            if seen is None:
                return
            right = self._product.is_right(question, seen.text)
            self._note(kind="generation", key=f"{seen.completion_id}:0", version=seen.version, right=right)
            is_spammer = self._random.random() < SPAMMER
            if not is_spammer and self._random.random() < SILENT:
                return
            said = {"name": "accepted", "value": False} if is_spammer else self._reaction(question, right=right)
            await self._say_sometime(person, seen, said, honest=not is_spammer)
            if said["name"] != "regenerated" or time.monotonic() > end:
                return

    def _reaction(self, question: ProductQuestion, *, right: bool) -> dict[str, Any]:
        if right:
            thumbs = self._random.random() < _THUMBS
            return {"name": "thumbs", "value": "up"} if thumbs else {"name": "accepted", "value": True}
        reactions: list[dict[str, Any]] = [
            {"name": "edited", "value": question.wanted, "correction": question.wanted},
            {"name": "regenerated", "value": True},
            {"name": "thumbs", "value": "down"},
            {"name": "accepted", "value": False},
        ]
        return self._random.choices(reactions, weights=[4, 2, 1.5, 2.5])[0]

    async def _ask(self, person: str, question: ProductQuestion) -> ShownAnswer | None:
        """None: the user left in the middle of the answer."""
        body: dict[str, Any] = {
            "model": self._product.name,
            "messages": [{"role": "user", "content": question.text}],
            "user": person,
        }
        if self._random.random() >= STREAMED:
            answer = await self._client.chat.completions.create(**body)
            return ShownAnswer(answer.id, answer.choices[0].message.content or "", answer.policy_version)
        leaves, seen = self._random.random() < LEAVES, ShownAnswer("", "", None)
        chunks = await self._client.chat.completions.create(stream=True, **body)
        async for chunk in chunks:
            more = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            seen = ShownAnswer(chunk.id, seen.text + more, chunk.policy_version)
            if leaves and seen.text:
                await chunks.close()
                self._note(kind="left")
                return None
        return seen

    async def _say_sometime(self, person: str, seen: ShownAnswer, said: dict[str, Any], *, honest: bool) -> None:
        saying = self._say(person, seen, said, honest)
        if self._random.random() >= LATE:
            await saying
            return
        task = asyncio.create_task(self._late(saying))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    @staticmethod
    async def _late(saying: Any) -> None:
        await asyncio.sleep(LATE_SECONDS)
        await saying

    async def _say(self, person: str, seen: ShownAnswer, said: dict[str, Any], honest: bool) -> None:
        """Send a signal until it is acknowledged. The id makes retries idempotent."""
        body = {
            "id": f"fb_{uuid.UUID(int=self._random.getrandbits(128))}",
            "completion_id": seen.completion_id,
            "submitter": {"id": person, "kind": "user"},
            "at": time.time(),
            **said,
        }
        twice = self._random.random() < TWICE
        if not await self._post(body):
            return
        positive = said["value"] in (True, "up") and said["name"] != "regenerated"
        key = f"{seen.completion_id}:0"
        self._note(kind="signal", id=body["id"], key=key, name=said["name"], positive=positive, honest=honest)
        if twice:
            await self._post(body)

    async def _post(self, body: dict[str, Any]) -> bool:
        reason = await send_signal(self._feedback, body)
        if reason:
            self._note(kind="failed", what=f"feedback: {reason}")
        return not reason

    def _note(self, **item: object) -> None:
        self._out.write(json.dumps({"at": time.time(), **item}) + "\n")


def main() -> None:
    """Run a crowd from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products.users")
    parser.add_argument("product", choices=sorted(PRODUCTS))
    parser.add_argument("--url", required=True, help="where Millrace answers, without /v1")
    parser.add_argument("--key", required=True, help="an app key")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the users work")
    parser.add_argument("--users", type=int, default=16, help="how many work at the same time")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds from one question of a user to the next")
    parser.add_argument("--out", type=Path, required=True, help="file for the users' own list")
    options = parser.parse_args()
    crowd = ProductCrowd(
        PRODUCTS[options.product], options.url, options.key, seed=options.seed, out=options.out, pace=options.pace
    )
    asyncio.run(crowd.run(options.users, options.seconds))


if __name__ == "__main__":
    main()
