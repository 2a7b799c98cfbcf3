"""The HTTP port for operators and orchestrators: /metrics, /health, /ready.

Health: the main loop makes progress; otherwise restart the process. Ready: the process can do its work now; otherwise send it none.
In: GET requests. Out: Prometheus' text, or JSON. Waits for: nothing; it answers from its own threads, even while the process hangs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from contracts.errors import MillraceError
from runtime.listening import inherited_socket
from runtime.metrics import CLOCK, LAST_STEP, LAST_STEP_NAME, TROUBLE, WEIGHT_JUNK, WEIGHT_SNAPSHOT_EXPIRES

OPERATIONS_FD = "MILLRACE_OPERATIONS_FD"
OPERATIONS_ADDRESS = "MILLRACE_OPERATIONS"
"""`host:port` to listen at without a supervisor that passes a socket: `0.0.0.0:9464` in a container."""

LONGEST_STEP_SECONDS = 120.0
"""A loop whose step takes longer counts as hung."""
LONGEST_WORK_SECONDS = 1800.0
"""The same for loops whose step may fetch all weights of a large policy, train, or gate a candidate."""

Check = Callable[[], None]
"""Raises a `MillraceError` if the thing that it checks is not usable."""

_PATIENCE_SECONDS = 10.0
_READY_SECONDS = 1.0
_OK, _NOT_FOUND, _UNAVAILABLE = 200, 404, 503


class OperationsResponse(NamedTuple):
    """What a path is answered with."""

    status: int
    content_type: str
    body: bytes


class Operations:
    """See the module. This process is ready if all `checks` pass. `listening`: instead of the socket that was passed."""

    def __init__(
        self,
        checks: Mapping[str, Check] | None = None,
        *,
        longest_step_seconds: float = LONGEST_STEP_SECONDS,
        listening: socket.socket | None = None,
    ) -> None:
        self._longest = longest_step_seconds
        self._checks = dict(checks or {})
        self._draining = threading.Event()
        self._checking = threading.Lock()
        self._checked_at, self._found = float("-inf"), dict[str, str]()
        self._server: ThreadingHTTPServer | None = None
        step_done()
        CLOCK.set_function(time.time)
        listening = listening or _listening_socket()
        if listening is not None:
            self._serve(listening)

    def drain(self) -> None:
        """Report not ready from now on."""
        self._draining.set()

    def answer(self, path: str) -> OperationsResponse:
        """The response for a path."""
        if path == "/metrics":
            return OperationsResponse(_OK, CONTENT_TYPE_LATEST, generate_latest())
        if path == "/health":
            seconds = seconds_since_step()
            return _json(_OK if seconds < self._longest else _UNAVAILABLE, {"last_step_seconds": round(seconds, 1)})
        if path == "/ready":
            problems = self.problems()
            return _json(_UNAVAILABLE if problems else _OK, {"ready": not problems, "problems": problems})
        return _json(_NOT_FOUND, {"error": "not found; there are /metrics, /health and /ready"})

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def problems(self) -> dict[str, str]:
        """What keeps this process from its work, by name; empty if it is ready."""
        problems = {"draining": "told to stop"} if self._draining.is_set() else {}
        return problems | _troubles | self._checked()

    def _checked(self) -> dict[str, str]:
        """Problems that the checks found; they run at most once per second, and never concurrently."""
        with self._checking:
            if time.monotonic() - self._checked_at >= _READY_SECONDS:
                self._found = {}
                for name, check in self._checks.items():
                    try:
                        check()
                    except MillraceError as error:
                        self._found[name] = error.message
                self._checked_at = time.monotonic()
            return dict(self._found)

    def _serve(self, listening: socket.socket) -> None:
        operations = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_SECONDS

            def do_GET(self) -> None:
                answer = operations.answer(self.path.partition("?")[0])
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's name
                """Do not log scrapes."""

        self._server = server = _OperationsServer(("", 0), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="operations", daemon=True).start()


class _OperationsServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked and left before the answer is worth no traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def step_done() -> None:
    """Report that the main loop finished a step."""
    LAST_STEP.set(time.time())


def seconds_since_step() -> float:
    """How long ago the main loop finished a step."""
    return time.time() - (REGISTRY.get_sample_value(LAST_STEP_NAME) or 0.0)


def trouble(name: str, reason: str | None) -> None:
    """Report a reason why this process is not ready; None takes it back."""
    TROUBLE.labels(name).set(reason is not None)
    if reason is None:
        _troubles.pop(name, None)
    else:
        _troubles[name] = reason


_troubles: dict[str, str] = {}


def _json(status: int, content: object) -> OperationsResponse:
    return OperationsResponse(status, "application/json", json.dumps(content).encode())


def _listening_socket() -> socket.socket | None:
    inherited, address = inherited_socket(OPERATIONS_FD), os.environ.get(OPERATIONS_ADDRESS)
    if inherited is not None or address is None:
        return inherited
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)))


class WeightStoreMetrics:
    """Counts what a process meets in its weight store."""

    def count_junk(self, code: str) -> None:
        """Count an object that could not be used; `code` names the reason."""
        WEIGHT_JUNK.labels(code).inc()

    def note_snapshot(self, expires_at: float) -> None:
        """Note until when the current list of versions is valid, UTC epoch seconds."""
        WEIGHT_SNAPSHOT_EXPIRES.set(expires_at)
