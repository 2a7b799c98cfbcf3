"""A reward server that can fail or be slow when a break wants it.

In: `POST {"completions": [...], ...}`. Out: `{"rewards": [...]}`, or status 500. Waits for: `pause_seconds`.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SlowRewardServer:
    """On a free port of this machine."""

    def __init__(self) -> None:
        self.fails = False
        self.pause_seconds = 0.0
        self.reward: float | None = None
        """Of every answer. None: it has no opinion, so nothing is learned."""
        world = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                time.sleep(world.pause_seconds)
                answer = json.dumps({"rewards": [world.reward] * len(asked["completions"])}).encode()
                self.send_response(500 if world.fails else 200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's name
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
