"""HTTP load from a process of its own: `python -m tests.worlds.servers.load` reads one request on stdin, prints figures as JSON.

Flows in: a plan (`LoadPlan` as JSON). Flows out: statuses and latencies (`Load` as JSON). Closed loop: each connection sends
its next request when it has its answer. Open loop: requests fall due at a steady rate, and a latency counts from the time
a request was due, so that a server that stalls is charged for those that had to wait. Raw sockets and no parsing beyond
status and length: on two cores, what the client burns the server lacks.

`{n}` in path and body becomes a number unique within a run of the generator, `{uuid7}` a fresh time-ordered id.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import NamedTuple

import msgspec
import uvloop

from tests.worlds.paths import ROOT


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. `rate` None: closed loop; else requests per second, over at most `connections`."""

    host: str = "127.0.0.1"
    port: int
    path: str
    body: str
    method: str = "POST"
    headers: dict[str, str] = {}
    connections: int = 8
    seconds: float = 5.0
    warm_up: float = 1.0
    rate: float | None = None
    keep_answers: bool = False
    """Also return the bodies of answers with a status below 300."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, after the warm-up. Latencies are milliseconds; `statuses` -1: the connection broke."""

    seconds: float
    statuses: dict[int, int]
    latencies: list[float]
    answers: list[str] = []

    @property
    def per_second(self) -> float:
        """Answers below 300 per second."""
        return self.num_good / self.seconds

    @property
    def num_good(self) -> int:
        """Answers below 300."""
        return sum(num for status, num in self.statuses.items() if 0 < status < 300)

    def percentile(self, share: float) -> float:
        """Of the latencies of good answers, in milliseconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class _Answer(NamedTuple):
    status: int
    body: bytes


def start_load(plan: LoadPlan) -> subprocess.Popen[bytes]:
    """Start sending; `finish_load` waits for the figures."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.worlds.servers.load"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(plan) + b"\n")
    process.stdin.flush()
    return process


def finish_load(process: subprocess.Popen[bytes]) -> Load:
    """The figures, once all is sent. Raises RuntimeError if the process ended without them."""
    output, _ = process.communicate()
    if process.returncode != 0 or not output:
        raise RuntimeError(
            f"tests.worlds.servers.load ended with {process.returncode} and {len(output)} bytes of figures"
        )
    return msgspec.json.decode(output, type=Load)


def stop_load(process: subprocess.Popen[bytes]) -> Load:
    """The figures now: what is under way is waited for, and nothing more is sent."""
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)  # from here on it reacts
    process.terminate()
    return finish_load(process)


def run_load(plan: LoadPlan) -> Load:
    """Send and wait."""
    return finish_load(start_load(plan))


class _Generator:
    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        lines = [f"host: {plan.host}:{plan.port}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in plan.headers.items()]
        self.head = "\r\n".join(lines)
        self.run = secrets.token_hex(4)
        self.count = 0
        self.begin = self.end = 0.0
        self.stopped = False
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.answers: list[str] = []

    async def send_all(self) -> Load:
        started = time.perf_counter()
        self.begin, self.end = started + self.plan.warm_up, started + self.plan.warm_up + self.plan.seconds
        await asyncio.gather(*(self._connection(started) for _ in range(self.plan.connections)))
        return Load(
            seconds=self.end - self.begin,
            statuses=dict(self.statuses),
            latencies=self.latencies,
            answers=self.answers,
        )

    def stop(self, *_: object) -> None:
        """Send nothing more."""
        self.stopped, self.end = True, time.perf_counter()

    def _request(self) -> bytes:
        self.count += 1
        path, body = self._fill(self.plan.path), self._fill(self.plan.body).encode()
        head = f"{self.plan.method} {path} HTTP/1.1\r\n{self.head}\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _fill(self, text: str) -> str:
        if "{uuid7}" in text:
            text = text.replace("{uuid7}", _uuid7())
        return text.replace("{n}", f"{self.run}-{self.count}")

    async def _connection(self, started: float) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        due = started
        while not self.stopped and time.perf_counter() < self.end:
            if self.plan.rate is not None:
                due = started + self.count / self.plan.rate
                if due >= self.end:
                    break
            request = self._request()
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sent = due if self.plan.rate is not None else time.perf_counter()
            try:
                streams = streams or await asyncio.open_connection(self.plan.host, self.plan.port)
                streams[1].write(request)
                answer = await _read(streams[0])
            except (OSError, asyncio.IncompleteReadError):
                self._note(_Answer(-1, b""), sent)
                streams = None
                await asyncio.sleep(0.01)
                continue
            self._note(answer, sent)
        if streams is not None:
            streams[1].close()

    def _note(self, answer: _Answer, sent: float) -> None:
        now = time.perf_counter()
        good = 0 < answer.status < 300
        if good and self.plan.keep_answers:
            self.answers.append(answer.body.decode())
        if self.begin <= now <= self.end:
            self.statuses[answer.status] += 1
            if good:
                self.latencies.append(1000 * (now - sent))


async def _read(reader: asyncio.StreamReader) -> _Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    _, found, rest = head.partition(b"content-length:")
    length = int(rest.partition(b"\r\n")[0]) if found else 0
    return _Answer(status, await reader.readexactly(length) if length else b"")


def _uuid7() -> str:
    value = (time.time_ns() // 1_000_000 << 80) | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62
    digits = f"{value | secrets.randbits(62):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def main() -> None:
    """Read a plan, send, print the figures."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=LoadPlan)
    generator = _Generator(plan)
    # Not a handler of the loop's: that one ends with the loop, and a signal while the figures are written would cut them off.
    signal.signal(signal.SIGTERM, generator.stop)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()
    load = uvloop.run(generator.send_all())
    # Not sys.stdout: with PYTHONUNBUFFERED it has no buffer, and a signal would leave a part of the figures unwritten.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(msgspec.json.encode(load))


if __name__ == "__main__":
    main()
