"""A judge on a port of this machine: an OpenAI-compatible endpoint that answers what a test decides."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class AskedJudge(NamedTuple):
    """One request, read as a judge does that trusts the fences and nothing else."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def system(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def user(self) -> str:
        return str(self.body["messages"][-1]["content"])

    @property
    def sections(self) -> dict[str, str]:
        """Texts between the fences, by name."""
        found = re.search(r"carry the code (\w+)\.", self.system)
        if found is None:
            return {}
        fence = re.compile(rf"<<<([A-Z ]+) {found[1]}>>>\n(.*?)\n<<<END \1 {found[1]}>>>", re.DOTALL)
        return dict(fence.findall(self.user))

    @property
    def answer(self) -> str:
        return self.sections.get("ANSWER", "")


def verdict(level: object, reason: str = "because") -> str:
    return json.dumps({"reason": reason, "level": level})


Decide = Callable[[AskedJudge], "str | dict[str, Any]"]


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """A judge's clients come many at once; with the usual five, some are reset on a busy machine."""


class JudgeServer:
    """`decide` returns the content of the reply, or a whole choice. `fails` are statuses given first, with headers."""

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.asked: list[AskedJudge] = []
        self.fails: list[tuple[int, dict[str, str]]] = []
        self.refuses: set[str] = set()
        self.seconds = 0.0
        self.usage: dict[str, int] | None = {"prompt_tokens": 100, "completion_tokens": 20}
        self.num_at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()
        judge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, headers, content = judge.reply(
                    AskedJudge(body, {k.lower(): v for k, v in self.headers.items()})
                )
                wire = json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(wire)))
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have stopped waiting
                    self.wfile.write(wire)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def reply(self, asked: AskedJudge) -> tuple[int, dict[str, str], dict[str, Any]]:
        with self.lock:
            self.asked.append(asked)
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
            failure = self.fails.pop(0) if self.fails else None
        try:
            time.sleep(self.seconds)
            if failure:
                return failure[0], failure[1], {"error": {"message": "not now"}}
            if refused := self.refuses & asked.body.keys():
                return 400, {}, {"error": {"message": f"{min(refused)} is not supported"}}
            decided = self.decide(asked)
        finally:
            with self.lock:
                self.num_at_once -= 1
        choice = {"message": {"role": "assistant", "content": decided}} if isinstance(decided, str) else decided
        return 200, {}, {"choices": [{"index": 0, "finish_reason": "stop", **choice}], "usage": self.usage}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def judge_server(decide: Decide) -> Iterator[JudgeServer]:
    server = JudgeServer(decide)
    try:
        yield server
    finally:
        server.close()
