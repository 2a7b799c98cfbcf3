"""Serves a folder as a bucket: the part of S3 that readers of weights use. It counts the fetched bytes and can be slowed down.

In: GET of objects (with a range) and of listings. Out: their bytes. A weight store has the same layout in a bucket and in a
folder, so a publisher writes to the folder and a reader at `s3://bucket` sees the same objects.
"""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_PIECE_BYTES = 512
_DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
_OK, _PARTIAL, _NOT_FOUND = 200, 206, 404


class Fetched(NamedTuple):
    """One requested object, and how many of its bytes were sent."""

    name: str
    """The last part of its path: of a chunk its digest."""
    num_bytes: int
    is_chunk: bool


class BucketServer:
    """Serves `folder` at `url` until `close`. A piece of a chunk takes `piece_seconds`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.piece_seconds = 0.0
        self.fetched: list[Fetched] = []
        self.chunk_asked = threading.Event()
        """Cleared by others, to wait for the next time a chunk is asked for."""
        self.chunk_sent = threading.Event()
        """The same of the last byte of a chunk."""
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Start to answer; until then connections wait."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_request: object) -> None:
        """The client was killed."""


class _Handler(BaseHTTPRequestHandler):
    bucket: BucketServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
        if key:
            self._object(key)
        else:
            self._answer(_OK, _listing(self.bucket.folder, parse_qs(parts.query)), {"content-type": "application/xml"})

    def _object(self, key: str) -> None:
        path = self.bucket.folder / key
        if not path.is_file():
            self._answer(_NOT_FOUND, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        content, headers, status = path.read_bytes(), {"etag": f'"{path.name}"', "last-modified": _DATE}, _OK
        size = len(content)
        if asked := self.headers.get("range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last or size) + 1]
            headers["content-range"] = f"bytes {first}-{int(first) + len(content) - 1}/{size}"
            status = _PARTIAL
        is_chunk = "chunks" in path.parts
        if is_chunk:
            self.bucket.chunk_asked.set()
        sent = self._answer(status, content, headers, self.bucket.piece_seconds if is_chunk else 0.0)
        self.bucket.fetched.append(Fetched(path.name, sent, is_chunk))
        if is_chunk and sent == len(content):
            self.bucket.chunk_sent.set()

    def _answer(self, status: int, content: bytes, headers: dict[str, str], piece_seconds: float = 0.0) -> int:
        """Returns how many bytes of the content could be sent."""
        sent = 0
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            step = _PIECE_BYTES if piece_seconds else max(len(content), 1)
            for start in range(0, len(content), step):
                time.sleep(piece_seconds)
                sent += self.wfile.write(content[start : start + step])
        except OSError:  # the client was killed
            self.close_connection = True
        return sent

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def _listing(folder: Path, query: dict[str, list[str]]) -> bytes:
    (prefix,), (after,) = query.get("prefix", [""]), query.get("start-after", [""])
    keys = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    items = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{(folder / key).stat().st_size}</Size>"
        f'<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>"{escape(key)}"</ETag></Contents>'
        for key in sorted(keys)
        if key.startswith(prefix) and key > after
    )
    text = f'<?xml version="1.0"?><ListBucketResult><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{items}</ListBucketResult>'
    return text.encode()
