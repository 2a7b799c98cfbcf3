"""An engine that repeats the prompt, token by token, so that the user's text is in the answer too.

In: requests over loopback. Out: streams in the dialect of ours. Waits for: `hold`, where a test wants an answer that takes long.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SYSTEM = {"engine": "echo/1", "dtype": "float32"}
_JSON = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_STREAM = (
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


class EchoEngine:
    """See the module. `hold`: how many of the next answers stop after their first token."""

    def __init__(self) -> None:
        self.port = 0
        self.hold = 0
        self._ending = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[EchoEngine]:
        """Answer on a port of its own until the block ends."""
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._ending.set()
            server.close()
            await asyncio.gather(*self._answering, return_exceptions=True)
            await server.wait_closed()

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if b"/generate" in head.partition(b"\r\n")[0]:
                await self._generate(json.loads(body), writer)
            else:
                answer = json.dumps({"status": "serving", "data": [], "versions": {"live": 0}, **_SYSTEM}).encode()
                writer.write(_JSON % (len(answer), answer))
            await writer.drain()
        except (OSError, EOFError):
            pass  # the client has left
        finally:
            writer.close()

    async def _generate(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        held, self.hold = self.hold > 0, max(0, self.hold - 1)
        said = asked["token_ids"][: asked["sampling_params"]["max_tokens"]]
        writer.write(_STREAM)
        for place, token in enumerate(said):
            choice = {"index": 0, "token_ids": [token], "logprobs": {"content": [{"token_id": token, "logprob": -0.5}]},
                      "finish_reason": "length" if place == len(said) - 1 else None,
                      "weight_versions": None if place else [{"version": "v0", "start": 0, "end": 1}]}  # fmt: skip
            event = {"choices": [choice], "system": _SYSTEM}
            _send(writer, json.dumps(event).encode())
            await writer.drain()
            if held:
                await self._ending.wait()
                return
        _send(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")


def _send(writer: asyncio.StreamWriter, event: bytes) -> None:
    line = b"data: %s\n\n" % event
    writer.write(b"%x\r\n%s\r\n" % (len(line), line))
