"""The shop's tools over HTTP: `POST /tools/NAME` with a JSON object of arguments, on a thread of its own.

In: calls from the agent. Out: 200 with the tool's result; 422 with {"error": ...} if the tool cannot do that; 400 if the body is no
JSON object.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.support.cases import SupportCase
from examples.support.shop import Shop, ToolRefused

_PATH = "/tools/"
_MAX_BODY = 10_000
OK, BAD, NOT_FOUND, REFUSED = 200, 400, 404, 422


class OpenShop:
    """A shop for several threads, and where its tools are."""

    def __init__(self) -> None:
        self._shop, self._lock = Shop(), threading.Lock()
        self.url = ""

    def open(self, case: SupportCase) -> None:
        """See `Shop`."""
        with self._lock:
            self._shop.open(case)

    def close(self, case: SupportCase) -> tuple[str, ...]:
        """See `Shop`."""
        with self._lock:
            return self._shop.close(case)

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and content of one HTTP response."""
        if not path.startswith(_PATH):
            return NOT_FOUND, {"error": "no such page"}
        try:
            arguments = json.loads(body)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return BAD, {"error": "not a JSON object"}
        try:
            with self._lock:
                return OK, self._shop.call(path.removeprefix(_PATH), arguments)
        except ToolRefused as refused:
            return REFUSED, {"error": str(refused)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """With the default of 5, agents who connect at the same time are refused."""


@contextmanager
def tool_server() -> Iterator[OpenShop]:
    """Serve a new shop on a free port of this machine, until the end of the block."""
    shop = OpenShop()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            length = min(int(self.headers.get("content-length") or 0), _MAX_BODY)
            status, content = shop.answer(self.path, self.rfile.read(length))
            written = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    shop.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield shop
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
