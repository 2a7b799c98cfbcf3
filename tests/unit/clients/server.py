"""A feedback API whose answers a test chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tests.unit.services.serving import serve


class ScriptedApi:
    """Gives its `answers` one after another, each a status, headers and a body; then it takes everything."""

    def __init__(self, *answers: tuple[int, dict[str, str], object]) -> None:
        self.answers = list(answers)
        self.batches: list[list[dict[str, Any]]] = []
        self.keys: list[str] = []
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = Request(scope, receive)
        assert request.url.path == "/v1/feedback/batch"
        self.batches.append(json.loads(await request.body())["items"])
        self.keys.append(request.headers["authorization"])
        answer: Response = JSONResponse({"successes": [], "errors": []}, 207)
        if self.answers:
            status, headers, body = self.answers.pop(0)
            answer = JSONResponse(body, status, headers)
        await answer(scope, receive, send)

    @property
    def values(self) -> list[Any]:
        """Of all batches."""
        return [item["value"] for batch in self.batches for item in batch]


@contextmanager
def scripted(*answers: tuple[int, dict[str, str], object]) -> Iterator[ScriptedApi]:
    """Serve it on a loopback port."""
    api = ScriptedApi(*answers)
    with serve(api) as api.url:
        yield api
