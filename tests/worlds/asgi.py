"""Requests to an application without a network; a stream is read up to its first piece."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message, Scope

HOST = "millrace.test"
_ADDRESSES = (f"10.{place >> 16 & 255}.{place >> 8 & 255}.{place & 255}" for place in itertools.count())
"""Each request comes from elsewhere: refused keys of one address are held back."""


class AsgiAnswer(NamedTuple):
    """What came back. Header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def cookies(self) -> dict[str, str]:
        """Those that it sets."""
        jar: SimpleCookie = SimpleCookie(self.headers.get("set-cookie", ""))
        return {name: morsel.value for name, morsel in jar.items()}


async def ask(
    app: ASGIApp, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> AsgiAnswer:
    """One request and its answer. `target`: a path with its query."""
    parts = urlsplit(target)
    sent = {"host": HOST, **(headers or {})}
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(parts.path), "raw_path": parts.path.encode(), "query_string": parts.query.encode(),
        "root_path": "", "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": (next(_ADDRESSES), 50_000), "server": (HOST, 80), "state": {},
    }  # fmt: skip
    begun: dict[str, Message] = {}
    pieces: list[bytes] = []
    enough, left = asyncio.Event(), asyncio.Event()
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            begun["start"] = message
            return
        pieces.append(message.get("body", b""))
        is_stream = any(value.startswith(b"text/event-stream") for _, value in begun["start"]["headers"])
        if not message.get("more_body") or (is_stream and any(pieces)):
            enough.set()

    serving, waiting = asyncio.ensure_future(app(scope, receive, send)), asyncio.ensure_future(enough.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    left.set()
    for task in (waiting, serving):
        task.cancel()
    ended = await asyncio.gather(serving, waiting, return_exceptions=True)
    if "start" not in begun:
        raise RuntimeError(f"{method} {target} got no answer") from next(
            (error for error in ended if isinstance(error, BaseException)), None
        )
    start = begun["start"]
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return AsgiAnswer(start["status"], found, b"".join(pieces))
