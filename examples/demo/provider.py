"""A provider of the demo: somebody else's model, good, slow and dear, over HTTP. It knows the right booking, as the users do.

In: chat completions, whole or streamed. Out: the right answer 97 times of 100, after a third of a second, with usage; now and then 429 with
`retry-after`, never twice for one request. Equal seeds give equal answers, latencies and refusals.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.reservations.sentences import Request, confused, requests

MODEL = "dear-1"
RIGHT, REFUSED, MEDIAN_SECONDS, SPREAD = 0.97, 0.02, 0.3, 0.35
INPUT_PRICE, OUTPUT_PRICE = 5.0, 25.0
"""US dollars for a million tokens: those of a large model today."""
_MOST_REQUESTS, _LETTERS_OF_TOKEN, _PIECE = 20_000, 3, 8
_ROOT = Path(__file__).parent.parent.parent


class DearModel:
    """Answers the sentences of the users of this seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._known: dict[str, Request] = {}
        self._stream = itertools.islice(requests("users", seed), _MOST_REQUESTS)
        self._times = Counter[str]()
        self._refused = set[str]()

    def draw(self, sentence: str) -> tuple[str | None, float]:
        """What it says to a sentence this time, and after how many seconds; None: it is too busy. Raises KeyError: nobody asks that."""
        while sentence not in self._known:
            if (request := next(self._stream, None)) is None:
                raise KeyError(sentence)
            self._known[request.sentence] = request
        request, number = self._known[sentence], self._times[sentence]
        rng = Random(f"{self._seed}:{number}:{sentence}")
        seconds = rng.lognormvariate(math.log(MEDIAN_SECONDS), SPREAD)
        right, is_busy = rng.random() < RIGHT, rng.random() < REFUSED
        if is_busy and sentence not in self._refused:
            self._refused.add(sentence)
            return None, 0.0
        self._refused.discard(sentence)
        self._times[sentence] += 1
        return (request.booking if right else confused(request, rng)).json(), seconds

    async def respond(self, client: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        asked = await client.json()
        sentence = str(asked["messages"][-1]["content"])
        try:
            text, seconds = self.draw(sentence)
        except KeyError:
            return _error(400, "it takes reservations only", "invalid_request_error", {})
        if text is None:
            return _error(429, "too many requests", "rate_limit_error", {"retry-after": "1"})
        counts = {
            "prompt_tokens": 4 + len(sentence) // _LETTERS_OF_TOKEN,
            "completion_tokens": len(text) // _LETTERS_OF_TOKEN,
        }
        if asked.get("stream"):
            return StreamingResponse(_events(text, seconds, counts), media_type="text/event-stream")
        await asyncio.sleep(seconds)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({**_about("chat.completion"), "choices": [choice], "usage": counts})


def _about(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-dear", "object": kind, "created": 1, "model": MODEL}


def _error(status: int, message: str, kind: str, headers: dict[str, str]) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind}}, status, headers)


async def _events(text: str, seconds: float, counts: dict[str, int]) -> AsyncIterator[str]:
    """The first piece comes after half of the time."""
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": piece}, None) for piece in pieces]
    await asyncio.sleep(seconds / 2)
    for delta, reason in [*deltas, ({}, "stop")]:
        await asyncio.sleep(seconds / 2 / len(deltas) if delta else 0.0)
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        yield f"data: {json.dumps({**_about('chat.completion.chunk'), 'choices': [choice]})}\n\n"
    yield f"data: {json.dumps({**_about('chat.completion.chunk'), 'choices': [], 'usage': counts})}\n\n"
    yield "data: [DONE]\n\n"


def app_of(seed: int) -> Starlette:
    """The provider as an application."""
    return Starlette(routes=[Route("/v1/chat/completions", DearModel(seed).respond, methods=["POST"])])


@contextmanager
def provider_process(seed: int) -> Iterator[str]:
    """A process of its own. Gives its URL, as an SDK's `base_url`; connections wait until it is ready."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        descriptor, port = listening.fileno(), listening.getsockname()[1]
        command = [sys.executable, "-m", "examples.demo.provider", "--seed", str(seed), "--fd", str(descriptor)]
        with subprocess.Popen(command, pass_fds=[descriptor], cwd=_ROOT) as process:  # noqa: S603 our own module
            try:
                yield f"http://127.0.0.1:{port}/v1"
            finally:
                process.terminate()


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the users whose sentences it knows, and of its draws")
    parser.add_argument("--fd", type=int, required=True, help="a listening socket that it inherited")
    options = parser.parse_args()
    server = uvicorn.Server(uvicorn.Config(app_of(options.seed), log_level="warning"))
    server.run([socket.socket(fileno=options.fd)])


if __name__ == "__main__":
    main()
