"""The trainer's web server: a weight store's folder, in parts, with every byte counted.

usage: python -m tests.worlds.regions.origin --root DIR --port P

In: GET /PATH, with or without Range. Out: the file; `GET /_stats` says what went out. Waits for: the disk. It keeps
connections open and answers requests that came ahead in order, as nginx would; what it cannot do is anything else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvicorn
from blake3 import blake3

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_OK, _PARTIAL, _NOT_MODIFIED, _NOT_FOUND, _BEYOND = 200, 206, 304, 404, 416
_KEEP_SECONDS = 3600
Message = MutableMapping[str, Any]


class Egress(msgspec.Struct):
    """Bodies since the start. `chunks` are bytes by digest, `text_bytes` manifests and pointers."""

    num_requests: int = 0
    text_bytes: int = 0
    chunks: dict[str, int] = msgspec.field(default_factory=dict)

    def chunk_bytes_since(self, before: Egress) -> int:
        """Of all chunks, since an earlier look."""
        return sum(self.chunks.values()) - sum(before.chunks.values())


class OriginReply(NamedTuple):
    """An answer; header names in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


def part_of(wanted: str, size: int) -> tuple[int, int] | None:
    """First byte and end of the part of a file that a Range header asks for; None: the whole file. An empty part begins beyond its end."""
    if (found := _RANGE.fullmatch(wanted)) is None:
        return None
    start, end = int(found[1]), min(int(found[2]) + 1, size)
    return (start, end) if start < end else (size, size)


class RegionOrigin:
    """An ASGI application.

    Args:
        root: of the weight store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.egress = Egress()

    async def __call__(
        self, scope: Message, _: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        fields = {name.decode(): value.decode() for name, value in scope["headers"]}
        reply = self.reply(scope["path"].lstrip("/"), fields)
        headers = reply.fields | {"content-length": str(len(reply.body))}
        await send(
            {
                "type": "http.response.start",
                "status": reply.status,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": reply.body})

    def reply(self, path: str, fields: dict[str, str]) -> OriginReply:
        """What to say about a path, counted."""
        if path == "_stats":
            return OriginReply(_OK, {"content-type": "application/json"}, msgspec.json.encode(self.egress))
        self.egress.num_requests += 1
        file = (self._root / path).resolve()
        if not file.is_relative_to(self._root) or not file.is_file():
            return OriginReply(_NOT_FOUND, {}, b"")
        if "/chunks/" not in path:
            return self._text(file, fields.get("if-none-match", ""))
        size = file.stat().st_size
        if (part := part_of(fields.get("range", ""), size)) is not None and part[0] == part[1]:
            return OriginReply(_BEYOND, {"content-range": f"bytes */{size}"}, b"")
        start, end = part or (0, size)
        with file.open("rb") as opened:
            opened.seek(start)
            body = opened.read(end - start)
        self.egress.chunks[file.name] = self.egress.chunks.get(file.name, 0) + len(body)
        if part is None:
            return OriginReply(_OK, {}, body)
        return OriginReply(_PARTIAL, {"content-range": f"bytes {start}-{end - 1}/{size}"}, body)

    def _text(self, file: Path, known: str) -> OriginReply:
        body = file.read_bytes()
        etag = f'"{blake3(body).hexdigest()}"'
        if known == etag:
            return OriginReply(_NOT_MODIFIED, {"etag": etag}, b"")
        self.egress.text_bytes += len(body)
        return OriginReply(_OK, {"etag": etag, "content-type": "application/json"}, body)


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.regions.origin")
    parser.add_argument("--root", type=Path, required=True, help="of the weight store")
    parser.add_argument("--host", default="0.0.0.0", help="inside of the trainer's namespace")  # noqa: S104 nothing else is there
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)
    uvicorn.run(
        RegionOrigin(options.root),
        host=options.host,
        port=options.port,
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_SECONDS,  # a connection over a long lossy way takes seconds to find its rate again
    )


if __name__ == "__main__":
    main(sys.argv[1:])
