"""A judge on a port of this machine: an OpenAI-compatible endpoint that follows a product's rubric, word for word.

In: requests of Millrace's judge client. Out: verdicts. Waits for: nothing. It reads only what stands between the fences.
"""

# ruff: noqa: S311 labels need repeatable randomness, not secret randomness

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.products.questions import ExtraProduct, stream
from commands.rewards.judge import run_admit
from contracts.errors import InvalidSettings
from contracts.tasks.loading import load_tasks

Rubric = Callable[[str, str], bool]
NUM_LABELS = 240
_BACKLOG = 128


@contextmanager
def serving(rubric: Rubric) -> Iterator[str]:
    """Run the judge; the base URL, with /v1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            wire = json.dumps(reply(rubric, json.loads(self.rfile.read(int(self.headers["content-length"]))))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(wire)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have stopped waiting
                self.wfile.write(wire)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = _BACKLOG
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(rubric: Rubric, body: Any) -> dict[str, Any]:
    """The completion with the verdict on one request."""
    fence = re.search(r"carry the code (\w+)\.", body["messages"][0]["content"])
    material = body["messages"][-1]["content"]
    found = (
        re.findall(rf"<<<([A-Z ]+) {fence[1]}>>>\n(.*?)\n<<<END \1 {fence[1]}>>>", material, re.DOTALL) if fence else []
    )
    texts = dict(found)
    passes = rubric(texts.get("CONVERSATION", ""), texts.get("ANSWER", ""))
    verdict = json.dumps({"reason": "The rubric says so.", "level": "yes" if passes else "no"})
    usage = {"prompt_tokens": len(material) // 4, "completion_tokens": len(verdict) // 4}
    message = {"role": "assistant", "content": verdict}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage}


def write_task(product: ExtraProduct, folder: Path, judge_url: str | None) -> Path:
    """The product's task file in a folder; its judge is admitted by labels that say what users hold.

    Raises:
        InvalidSettings: the judge misses its bar.
    """
    path = folder / product.task_file.name
    path.write_text(product.task_file.read_text().replace("JUDGE_URL", judge_url or ""))
    if judge_url is not None:
        labels = write_labels(product, folder / "labels.jsonl")
        (task,) = load_tasks((path,)).values()
        if run_admit(path, task.judges[0].name, labels) != 0:
            raise InvalidSettings(f"{path}: its judge misses its bar; the report beside it says where")
    return path


def write_labels(product: ExtraProduct, path: Path) -> Path:
    """Answers as the base gives them, each with what a user says of it."""
    rng, lines = Random(product.name), list[str]()
    for question in islice(stream(product, "sentinel", 0), NUM_LABELS):
        answer = question.label(rng)
        label = "yes" if product.is_right(question, answer) else "no"
        lines.append(json.dumps({"prompt": question.text, "completion": answer, "label": label}))
    path.write_text("\n".join(lines) + "\n")
    return path
