"""An engine without a model: sixteen tokens, one event each, at once or with gaps between them, in the dialect of ours.

Raw asyncio, so that a benchmark of the gateway in front of it measures the gateway and not this. `/v1/chat/completions` answers in
OpenAI's chat dialect, for peers that speak it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

NUM_TOKENS = 16
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TEXT = "Table for 4 at 7pm, Anna: booked"


def _stream(parts: list[bytes]) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    return [head + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


def _json(content: object) -> list[bytes]:
    body = json.dumps(content).encode()
    return [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)]


def _event(content: object) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def generation_of(token_ids: Sequence[int], finish_reason: str) -> list[bytes]:
    """An answer of these tokens, as it is sent."""
    events = []
    for place, token_id in enumerate(token_ids):
        last = place == len(token_ids) - 1
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": [token_id],
            "logprobs": {"content": [{"token_id": token_id, "logprob": -0.125 * (place % 16), "top_logprobs": []}]},
            "finish_reason": finish_reason if last else None,
        }
        if place == 0 or last:
            choice["weight_versions"] = [{"version": "v1", "start": 0, "end": place + 1}]
        content = {"request_id": "x", "model": "m", "choices": [choice]}
        events.append(_event(content | ({"system": _SYSTEM} if last else {})))
    return _stream([*events, b"data: [DONE]\n\n"])


def _sixteen(end: int | None) -> list[bytes]:
    """`end`: the id of the last token, with which the answer then ends by itself."""
    token_ids = [70 + place for place in range(NUM_TOKENS)]
    return generation_of(token_ids, "length") if end is None else generation_of([*token_ids[:-1], end], "stop")


def _chat(stream: bool) -> list[bytes]:
    head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    if not stream:
        choice = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 20, "completion_tokens": NUM_TOKENS, "total_tokens": 20 + NUM_TOKENS}
        return _json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    pieces = [_TEXT[place : place + 2] for place in range(0, len(_TEXT), 2)]
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": piece}, None) for piece in pieces]
    deltas.append(({}, "stop"))
    events = [
        _event({**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d, "finish_reason": f}]})
        for d, f in deltas
    ]
    return _stream([*events, b"data: [DONE]\n\n"])


_SYSTEM = {"engine": "mock/1", "dtype": "float32"}
_HEALTH = _json({"status": "serving", "versions": {"live": 1}, **_SYSTEM})
_MODELS = _json({"object": "list", "data": [{"id": "gateway", "object": "model"}]})
_CHAT, _CHAT_STREAM = _chat(stream=False), _chat(stream=True)


class MockEngine(asyncio.Protocol):
    """One connection: a request is answered once its body is complete.

    Args:
        gap: seconds between two events of a stream.
        generate: the answer to the body of a request for tokens.
    """

    def __init__(self, gap: float, generate: Callable[[bytes], list[bytes]]) -> None:
        self._gap = gap
        self._generate = generate
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment] # TCP: it can be written

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:end]
            found = _LENGTH.search(head)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._held) < size:
                return
            body, self._held = self._held[end + 4 : size], self._held[size:]
            self._say(self._answer(head, body))

    def _say(self, parts: list[bytes]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._gap == 0.0 or len(parts) == 1:
            self._transport.write(b"".join(parts))
            return
        self._transport.write(parts[0])
        asyncio.get_running_loop().call_later(self._gap, self._say, parts[1:])

    def _answer(self, head: bytes, body: bytes) -> list[bytes]:
        if b"/chat/completions" in head:
            return _CHAT_STREAM if b'"stream": true' in body or b'"stream":true' in body else _CHAT
        if b"/generate" in head:
            return self._generate(body)
        return _MODELS if b"/models" in head else _HEALTH


async def serve(port: int, gap: float, generate: Callable[[bytes], list[bytes]]) -> None:
    """Answer on 127.0.0.1 until cancelled; prints the port once it listens. See `MockEngine`."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockEngine(gap, generate), "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; it is printed")
    parser.add_argument("--gap", type=float, default=0.0, help="ms between two events of a stream; 0: all at once")
    parser.add_argument("--end", type=int, help="id of the last token of an answer, which then ends by itself")
    options = parser.parse_args()
    answer = _sixteen(options.end)
    uvloop.run(serve(options.port, options.gap / 1000, lambda _body: answer))


if __name__ == "__main__":
    main()
