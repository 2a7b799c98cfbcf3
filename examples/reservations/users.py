"""Simulated users: a process of their own that knows the right booking and reaches Millrace only over HTTP.

In: the endpoint, through the unmodified `openai` SDK, and the feedback API. Out: signals, and the users' own list of the
answers that they saw and the signals that they sent, one JSON object per line:

    {"kind": "generation", "key", "version", "at", "right",       an answer that a user saw to the end of its response; `version`:
     "provided", "seconds"}                                       null if nobody can tell which one made it; `provided`: the reply
                                                                  names another model than was asked for; `seconds`: until it was seen
    {"kind": "signal", "id", "key", "name", "positive", "at"}     an acknowledged signal; `at`: when
    {"kind": "left"}                                              a user closed the page in the middle of an answer
    {"kind": "failed", "what"}                                    a request that failed, after all its tries
    {"kind": "retried", "what"}                                   one more try, of a question or of a signal

Habits: 40% give no feedback on any answer; 2% are spammers who reject everything; the others accept right answers, and edit,
regenerate, reject or vote down wrong ones. Some signals come late, some twice, some before the answer has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai

from examples.pace import Pace, add_pace_options, pace_of
from examples.reservations.sentences import Request, requests

SILENT, SPAMMER = 0.40, 0.02
STREAMED, LEAVES, LATE, TWICE = 0.3, 0.01, 0.02, 0.05
LATE_SECONDS = 11.0
_RETRY_SECONDS = 0.5
_LAST_TRY_SECONDS = 60.0


class SeenAnswer(NamedTuple):
    """An answer as the user saw it. `version`: None if nobody can tell which one made it, or not yet; `model`: as the reply names it."""

    completion_id: str
    text: str
    version: int | None
    model: str
    asked_at: float


class Crowd:
    """A number of users who work at the same time."""

    def __init__(
        self, url: str, key: str, model: str, *, seed: int, out: Path, pace: Pace, feedback_url: str | None = None
    ) -> None:
        hooks = {"request": [self._note_retry]}
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks)
        )
        self._feedback = httpx.AsyncClient(
            base_url=feedback_url or url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0
        )
        self._model = model
        self._random = random.Random(seed)
        self._requests: Iterator[Request] = requests("users", seed)
        self._out = out.open("a", buffering=1)
        self._pace = pace
        self._later: set[asyncio.Task[None]] = set()

    async def run(self, num_users: int, seconds: float) -> None:
        """All users work for `seconds`, or until no visit is left; then wait until the late signals are sent."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._user(number, end) for number in range(num_users)))
        await asyncio.gather(*self._later)
        await self._client.close()
        await self._feedback.aclose()
        self._out.close()

    async def _user(self, number: int, end: float) -> None:
        await asyncio.sleep(self._random.random() * self._pace.seconds)
        while time.monotonic() < end and self._pace.take():
            started = time.monotonic()
            person = f"user-{number}-{self._random.randrange(50)}"
            await self._visit(person, next(self._requests), end)
            rest = self._pace.seconds * self._random.uniform(0.5, 1.5) - (time.monotonic() - started)
            await asyncio.sleep(max(0.0, rest))

    async def _visit(self, person: str, request: Request, end: float) -> None:
        """One sentence, until the user is satisfied, gives up, or gives no feedback."""
        for _ in range(3):
            streamed = self._random.random() < STREAMED
            try:
                seen = await (self._stream(person, request) if streamed else self._ask(person, request))
            except openai.OpenAIError as error:
                self._note(kind="failed", what=f"{type(error).__name__}: {error}")
                return
            if seen is None:
                return
            if not streamed:
                self._note_answer(seen, request, time.time())
            said = self._decide(request, right=seen.text == request.booking.json())
            if said is None:
                return
            await self._say_sometime(person, seen, said)
            if said["name"] != "regenerated" or time.monotonic() > end:
                return

    def _decide(self, request: Request, *, right: bool) -> dict[str, Any] | None:
        """The user's signal: name, value and perhaps a correction. None: no feedback."""
        if self._random.random() < SPAMMER:
            return {"name": "accepted", "value": False}
        if self._random.random() < SILENT:
            return None
        if right:
            thumbs = self._random.random() < 0.3  # noqa: PLR2004 a habit
            return {"name": "thumbs", "value": "up"} if thumbs else {"name": "accepted", "value": True}
        wanted = request.booking.json()
        reactions: list[dict[str, Any]] = [
            {"name": "edited", "value": wanted, "correction": wanted},
            {"name": "regenerated", "value": True},
            {"name": "thumbs", "value": "down"},
            {"name": "accepted", "value": False},
        ]
        return self._random.choices(reactions, weights=[4, 2, 1.5, 2.5])[0]

    async def _ask(self, person: str, request: Request) -> SeenAnswer | None:
        asked_at = time.time()
        answer = await self._client.chat.completions.create(**self._body(person, request))
        return SeenAnswer(
            answer.id, answer.choices[0].message.content or "", version_of(answer), answer.model, asked_at
        )

    async def _stream(self, person: str, request: Request) -> SeenAnswer | None:
        leaves = self._random.random() < LEAVES
        text, completion_id, version, model, asked_at = "", "", None, "", time.time()
        stream = await self._client.chat.completions.create(stream=True, **self._body(person, request))
        async for chunk in stream:
            completion_id, version, model = chunk.id, version_of(chunk), chunk.model
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if leaves and text:
                await stream.close()
                self._note(kind="left")
                return None
            if text.endswith("}"):
                # The user sees the whole answer now. A signal sent from here on may overtake its own generation.
                break
        seen = SeenAnswer(completion_id, text, version, model, asked_at)
        task = asyncio.create_task(self._drain(stream, seen, request, time.time()))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return seen

    async def _drain(self, stream: openai.AsyncStream[Any], seen: SeenAnswer, request: Request, at: float) -> None:
        """Read a stream to its end: only the end promises that the answer is in the log."""
        try:
            async for chunk in stream:
                seen = seen._replace(version=version_of(chunk))
        except (openai.OpenAIError, httpx.HTTPError) as error:
            self._note(kind="failed", what=f"{type(error).__name__} at the end of a stream: {error}")
            return
        self._note_answer(seen, request, at)

    def _note_answer(self, seen: SeenAnswer, request: Request, at: float) -> None:
        self._note(
            kind="generation",
            key=f"{seen.completion_id}:0",
            version=seen.version,
            at=at,
            right=seen.text == request.booking.json(),
            provided=seen.model != self._model,
            seconds=round(at - seen.asked_at, 4),
        )

    def _body(self, person: str, request: Request) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": request.sentence}],
            "user": person,
        }

    async def _say_sometime(self, person: str, seen: SeenAnswer, said: dict[str, Any]) -> None:
        if self._random.random() < LATE:
            task = asyncio.create_task(self._say(person, seen, said, LATE_SECONDS))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            await self._say(person, seen, said, 0.0)

    async def _say(self, person: str, seen: SeenAnswer, said: dict[str, Any], wait: float) -> None:
        """Send a signal until it is acknowledged. The id makes retries idempotent."""
        await asyncio.sleep(wait)
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
        self._note(
            kind="signal",
            id=body["id"],
            key=f"{seen.completion_id}:0",
            name=said["name"],
            positive=said["value"] in (True, "up") and said["name"] != "regenerated",
        )
        if twice:
            await self._post(body)

    async def _post(self, body: dict[str, Any]) -> bool:
        give_up = time.monotonic() + _LAST_TRY_SECONDS
        reason = ""
        while time.monotonic() < give_up:
            try:
                answer = await self._feedback.post("/v1/feedback", json=body)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    return True
                reason = answer.text
                if answer.is_client_error:
                    break
            await asyncio.sleep(_RETRY_SECONDS)
            self._note(kind="retried", what=f"feedback: {reason}")
        self._note(kind="failed", what=f"feedback: {reason}")
        return False

    async def _note_retry(self, request: httpx.Request) -> None:
        """The SDK tries again by itself, and says so in a header."""
        if request.headers.get("x-stainless-retry-count", "0") != "0":
            self._note(kind="retried", what="question")

    def _note(self, **item: object) -> None:
        self._out.write(json.dumps({"at": time.time(), **item}) + "\n")


def version_of(reply: Any) -> int | None:
    """The version that a reply or chunk names; None: it names none, since a provider made it or nobody can tell."""
    version: int | None = getattr(reply, "policy_version", None)
    return version


def main() -> None:
    """Run a crowd from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where Millrace answers, without /v1")
    parser.add_argument("--feedback-url", help="where to send feedback, if it is another address")
    parser.add_argument("--key", required=True, help="an app key")
    parser.add_argument("--model", default="reservations", help="name of the policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the users work")
    parser.add_argument("--users", type=int, default=16, help="how many work at the same time")
    add_pace_options(parser, 1.0)
    parser.add_argument("--out", type=Path, required=True, help="file for the users' own list")
    options = parser.parse_args()
    crowd = Crowd(
        options.url,
        options.key,
        options.model,
        seed=options.seed,
        out=options.out,
        pace=pace_of(options),
        feedback_url=options.feedback_url,
    )
    asyncio.run(crowd.run(options.users, options.seconds))


if __name__ == "__main__":
    main()
