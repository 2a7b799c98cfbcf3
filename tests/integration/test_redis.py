"""Redis that is killed, comes back empty, or freezes: everybody is answered, and what was shared is shared again."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.replicas import ReplicaLinks, RequestClaim
from runtime.replicas.on_redis import connect
from services.inference.app import create_app
from services.inference.idempotency import REPLAYED
from tests.unit.services.inference.world import FakeEngine, Stage, StubbornLog, make_base
from tests.unit.services.serving import make_home, make_key, serve, wait_until

pytestmark = pytest.mark.services
SECONDS = 20.0


class Server:
    """A Redis of this test's own."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server: run make services")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._command = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)  # noqa: S603 our own command
        wait_until(self._listens, SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
        except OSError:
            return False
        return True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.engine = FakeEngine("Tisch für 4: {ok}")
    with serve(stage) as stage.url:
        yield stage


async def wait_until_shared(one: ReplicaLinks, two: ReplicaLinks) -> None:
    """Until what one takes is missing to the other, in both directions."""
    deadline = time.monotonic() + SECONDS
    for number in itertools.count():
        assert time.monotonic() < deadline, "limits are not shared again"
        refused: list[bool] = []
        for first, second in ((one, two), (two, one)):
            key = f"{number}.{len(refused)}"
            assert (await first.limiter.allow(key, 1)).wait_seconds == 0
            refused.append((await second.limiter.allow(key, 1)).wait_seconds > 0)
        if all(refused):
            return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_each_replica_counts_for_itself_until_redis_is_back(server: Server, fault: str) -> None:
    one, two = connect(server.url, "t."), connect(server.url, "t.")
    await wait_until_shared(one, two)

    server.kill() if fault == "killed" else server.freeze()
    for replica in (one, two):
        waits = [(await replica.limiter.allow("key", 3)).wait_seconds for _ in range(4)]
        assert waits[:3] == [0, 0, 0]
        assert waits[3] > 0, "a limit holds without Redis too"
        turn, again = RequestClaim(b"body", b"1"), RequestClaim(b"body", b"2")
        assert await replica.idempotency.claim("k", turn) == turn
        await replica.idempotency.finish("k", turn, b"answer")
        assert await replica.idempotency.claim("k", again) == again, "forgotten: it runs again"
        await asyncio.to_thread(replica.bell.ring, "moved")

    server.start() if fault == "killed" else server.wake()
    await wait_until_shared(one, two)
    for replica in (one, two):
        await replica.aclose()


async def test_whoever_may_have_missed_a_ring_is_woken_when_redis_is_back(server: Server) -> None:
    listener, ringer = connect(server.url, "t."), connect(server.url, "t.")
    woken = threading.Event()
    listener.bell.listen("moved", woken.set)
    assert await asyncio.to_thread(woken.wait, SECONDS), "at the first subscription"
    server.kill()
    woken.clear()
    await asyncio.to_thread(ringer.bell.ring, "moved")
    assert not woken.is_set()
    server.start()
    assert await asyncio.to_thread(woken.wait, SECONDS), "at the next one"
    woken.clear()
    deadline = time.monotonic() + SECONDS
    while not woken.is_set():  # the ringer tries again after a pause
        assert time.monotonic() < deadline
        await asyncio.to_thread(ringer.bell.ring, "moved")
        await asyncio.to_thread(woken.wait, 0.2)
    for replica in (listener, ringer):
        await replica.aclose()


def test_no_request_fails_while_redis_is_killed_frozen_and_back(
    server: Server, tmp_path: Path, database: Database, stage: Stage
) -> None:
    make_base(tmp_path / "base")
    key = make_key(database)
    settings = make_home(tmp_path, stage.url).model_copy(update={"redis": server.url, "requests_per_minute": 100_000})
    with ExitStack() as stack:
        urls = [
            stack.enter_context(serve(create_app(settings, event_log=StubbornLog(tmp_path / "log")))) for _ in range(2)
        ]
        client = stack.enter_context(httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=SECONDS))

        def ask(url: str, name: str) -> httpx.Response:
            body = {"model": "demo", "messages": [{"role": "user", "content": name}]}
            return client.post(f"{url}/v1/chat/completions", json=body, headers={"idempotency-key": name})

        def is_shared() -> bool:
            name = f"shared {next(numbers)}"
            first = ask(urls[0], name)
            second = ask(urls[1], name)
            return REPLAYED in second.headers and second.json() == first.json()

        numbers = itertools.count()
        wait_until(is_shared, SECONDS)
        with _going_on(ask, urls) as statuses:
            for harm, mend in ((server.kill, server.start), (server.freeze, server.wake)):
                harm()
                _wait_for_more(statuses, 40)
                mend()
                wait_until(is_shared, SECONDS)
    assert len(statuses) > 80
    assert set(statuses) == {200}


async def test_sessions_are_read_by_every_replica_until_their_time(server: Server) -> None:
    one, two = connect(server.url, "t."), connect(server.url, "t.")
    other_home = connect(server.url, "u.")
    await one.sessions.write({"a": b"1", "b": b"2"}, 60.0)
    await two.sessions.write({"b": b"\x00\xff"}, 0.3)
    assert await two.sessions.read(["b", "none", "a"]) == [b"\x00\xff", None, b"1"]
    assert await other_home.sessions.read(["a"]) == [None]
    await one.sessions.shorten(["a", "none"], 0.3)
    await asyncio.sleep(0.4)
    assert await one.sessions.read(["a", "b"]) == [None, None]
    await one.sessions.write({"a": b"1"}, 0.3)
    await one.sessions.shorten(["a"], 60.0)  # shorten never makes it longer
    await asyncio.sleep(0.4)
    assert await one.sessions.read(["a"]) == [None]
    for replica in (one, two, other_home):
        await replica.aclose()


def test_a_session_goes_on_at_another_replica_and_is_rendered_anew_without_redis(
    server: Server, tmp_path: Path, database: Database, stage: Stage
) -> None:
    make_base(tmp_path / "base")
    key = make_key(database)
    settings = make_home(tmp_path, stage.url).model_copy(update={"redis": server.url})
    log = StubbornLog(tmp_path / "log")
    with ExitStack() as stack:
        urls = [stack.enter_context(serve(create_app(settings, event_log=log))) for _ in range(2)]
        client = stack.enter_context(httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=SECONDS))
        messages = [{"role": "user", "content": "a"}]

        def ask(url: str) -> None:
            body = {"model": "demo", "messages": messages, "metadata": {"session_id": "s"}}
            answer = client.post(f"{url}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            said = answer.json()["choices"][0]["message"]["content"]
            messages.extend([{"role": "assistant", "content": said}, {"role": "user", "content": "b"}])

        for url in (urls[0], urls[1], urls[0]):
            ask(url)
        server.kill()
        ask(urls[1])
    places = range(log.num_partitions)
    records = [item for place in places for item in log.read(GENERATIONS, place, 0, 100)]
    turns = [decode(Generation, item.value).turn for item in records]
    assert [turn.branch for turn in turns if turn] == ["first", "", "", "unknown_history"]


def _wait_for_more(statuses: list[int], num: int) -> None:
    enough = len(statuses) + num
    wait_until(lambda: len(statuses) >= enough, SECONDS)


@contextmanager
def _going_on(ask: Callable[[str, str], httpx.Response], urls: list[str]) -> Iterator[list[int]]:
    """Two clients that ask one replica after the other, without pause; the statuses of their answers."""
    statuses: list[int] = []
    stopped = threading.Event()

    def run(worker: int) -> None:
        for number in itertools.count():
            if stopped.is_set():
                return
            statuses.append(ask(urls[number % 2], f"{worker} {number}").status_code)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
