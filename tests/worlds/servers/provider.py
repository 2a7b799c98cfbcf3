"""A provider with given answers, in the shapes of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse, StreamingResponse

MODEL = "big-1"
"""What apps ask it for."""
NAMED = "big-1-2026-10-01"
"""What it says that it is."""


def chat_answer(text: str | None = "Sure.", **message: Any) -> dict[str, Any]:
    """A whole chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "id": "chatcmpl-theirs",
        "object": "chat.completion",
        "created": 1,
        "model": NAMED,
        "choices": [choice],
        "usage": usage,
    }


def chat_chunks(*texts: str, usage: bool = True) -> list[Any]:
    """The chunks of a stream, then `[DONE]`."""
    deltas: list[tuple[dict[str, Any], str | None]] = [({"content": text}, None) for text in texts]
    shared = {"id": "chatcmpl-theirs", "object": "chat.completion.chunk", "created": 1, "model": NAMED}
    chunks: list[Any] = [
        {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in [({"role": "assistant", "content": ""}, None), *deltas, ({}, "stop")]
    ]
    counts = {"prompt_tokens": 7, "completion_tokens": 3}
    return [*chunks, *([{**shared, "choices": [], "usage": counts}] if usage else []), "[DONE]"]


class FakeProvider:
    """Answers every POST with `answer`, or `events` if a stream is asked for.

    Attributes:
        answer, status, headers: of whole answers.
        events: of streams; a text is sent as it is.
        breaks_after: the connection breaks after so many events.
        hold_after: streams wait for `go` after so many events.
        asked: path, headers and body of each request.
    """

    def __init__(self) -> None:
        self.answer: Any = chat_answer()
        self.status, self.headers = 200, dict[str, str]()
        self.events: list[Any] = chat_chunks("Su", "re.")
        self.breaks_after: int | None = None
        self.go = threading.Event()
        self.go.set()
        self.hold_after = 1
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.app = FastAPI()
        self.app.post("/v1/{path:path}")(self.respond)

    async def respond(self, path: str, request: Request) -> Response:
        """Any request."""
        body = await request.json()
        self.asked.append((path, dict(request.headers), body))
        if self.status != 200 or not body.get("stream"):
            if isinstance(self.answer, str):
                return Response(self.answer, self.status, self.headers)
            return JSONResponse(self.answer, self.status, self.headers)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        for place, event in enumerate(self.events):
            if place == self.breaks_after:
                raise ConnectionResetError
            while place >= self.hold_after and not self.go.is_set():  # noqa: ASYNC110 tests set it from their thread
                await asyncio.sleep(0.005)
            name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
            yield f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n"
