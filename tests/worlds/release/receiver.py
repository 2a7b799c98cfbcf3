"""A receiver of webhooks on a port of this machine, which answers as a test tells it."""

from __future__ import annotations

import base64
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from pipelines.release.webhooks.sending import SignedUrl

SECRET = bytes(range(32))
SECRET_TEXT = f"whsec_{base64.b64encode(SECRET).decode()}"


class Post(NamedTuple):
    """What came. `headers` have names in lower case."""

    body: bytes
    headers: dict[str, str]
    path: str

    @property
    def id(self) -> str:
        """The `webhook-id`."""
        return self.headers["webhook-id"]


class WebhookReceiver:
    """Keeps every POST. `statuses`: the answers to the next ones, then `then`. `wait`: runs before each answer."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook"
        self.posts: list[Post] = []
        self.statuses: list[int] = []
        self.then = 204
        self.headers: dict[str, str] = {}
        self.wait: Callable[[], object] = lambda: None

    @property
    def to(self) -> SignedUrl:
        """Where to send, and with which secret."""
        return SignedUrl(self.url, SECRET, may_be_private=True)

    def wait_for(self, num: int, seconds: float = 60.0) -> None:
        """Until so many POSTs came."""
        deadline = time.monotonic() + seconds
        while len(self.posts) < num and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.posts) >= num


@contextmanager
def receiving(context: ssl.SSLContext | None = None) -> Iterator[WebhookReceiver]:
    """A receiver, until the end of the block. With a context it speaks TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    receiver = WebhookReceiver(server.server_port)
    _Handler.receivers[server.server_port] = receiver
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    receivers: dict[int, WebhookReceiver] = {}  # noqa: RUF012 by port

    def do_POST(self) -> None:
        receiver = self.receivers[self.server.server_port]  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver.posts.append(Post(body, {name.lower(): text for name, text in self.headers.items()}, self.path))
        status = receiver.statuses.pop(0) if receiver.statuses else receiver.then
        receiver.wait()
        self.send_response(status)
        for name, text in receiver.headers.items():
            self.send_header(name, text)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""
