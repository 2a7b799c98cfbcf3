"""What the gateway's benchmarks run on: the real process `web`, a mock engine, requests over loopback.

Three processes: the mock engine, the gateway and the caller, which is the benchmark itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from commands.home import prepare_home
from runtime.settings import Settings
from services.inference.engine.http import Broken, Exchange, HttpClient
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.processes import free_port, process

_START_SECONDS = 120.0
OK = 200


class GatewayReply(NamedTuple):
    """How one request ended. Seconds count from when it was due, not from when it could be sent."""

    status: int
    seconds: float
    logged: bool
    id: str
    at: float
    """When it was due, on the clock of `time.monotonic`."""


class GatewayWorld(NamedTuple):
    """Where everything is."""

    home: Path
    gateway: str
    engine: str
    key: str
    process: psutil.Process


class HeadedExchange(Exchange):
    """An exchange that keeps the headers of its answer."""

    headers: dict[bytes, bytes]

    async def begin(self, method: str, path: str, body: bytes) -> None:
        """See `Exchange.begin`."""
        self.headers = {}
        await super().begin(method, path, body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of them; called by the parser."""
        self.headers[name.lower()] = value


def chat_body(stream: bool) -> bytes:
    """A request of the demo product."""
    content = "A table for four on Friday at half past seven, please. The name is Anna."
    messages = [
        {"role": "system", "content": "Turn the wish into a booking."},
        {"role": "user", "content": content},
    ]
    return json.dumps({"model": "gateway", "messages": messages, "stream": stream}).encode()


def engine_body() -> bytes:
    """What the gateway asks the engine for, about: the direct arm of a comparison."""
    sampling = {"max_tokens": 32, "temperature": 1.0, "logprobs": 0}
    content = {"model": "gateway", "token_ids": list(range(80)), "sampling_params": sampling, "stream": True}
    return json.dumps(content).encode()


async def ask(client: HttpClient, path: str, body: bytes, due: float | None = None) -> GatewayReply:
    """One request, to its end. A connection that breaks has status 0."""
    due = due or time.monotonic()
    try:
        exchange = await client.begin("POST", path, body)
        try:
            content = await exchange.read_all()
        finally:
            exchange.end()
    except Broken:
        return GatewayReply(0, time.monotonic() - due, logged=False, id="", at=due)
    headers = exchange.headers if isinstance(exchange, HeadedExchange) else {}
    logged = headers.get(b"x-millrace-logged") != b"false" and b'"logged":false' not in content
    identity = headers.get(b"x-request-id", b"").decode()
    return GatewayReply(exchange.status, time.monotonic() - due, logged, identity, due)


async def closed_loop(
    client: HttpClient, path: str, body: bytes, connections: int, seconds: float
) -> list[GatewayReply]:
    """Each connection asks again as soon as it was answered."""
    until = time.monotonic() + seconds

    async def one() -> list[GatewayReply]:
        replies = []
        while time.monotonic() < until:
            replies.append(await ask(client, path, body))
        return replies

    return [reply for replies in await asyncio.gather(*(one() for _ in range(connections))) for reply in replies]


async def open_loop(
    client: HttpClient,
    path: str,
    bodies: Callable[[int], bytes],
    rate: float,
    seconds: float,
    *,
    enough: asyncio.Event | None = None,
) -> list[GatewayReply]:
    """Send `rate` requests a second, without waiting for earlier ones, for so many seconds or until there are `enough`."""
    start = time.monotonic()
    asking = []
    for number in range(round(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if enough is not None and enough.is_set():
            break
        asking.append(asyncio.create_task(ask(client, path, bodies(number), due)))
    return list(await asyncio.gather(*asking))


def client_of(url: str, key: str = "") -> HttpClient:
    """A client that keeps headers."""
    return HttpClient(url, {"authorization": f"Bearer {key}"} if key else None, HeadedExchange)


def mock_engine(gap: float = 0.0, end: int | None = None) -> list[str]:
    """The mock engine's command. `gap`: ms between two tokens. `end`: the last token of each answer."""
    ending = [] if end is None else ["--end", str(end)]
    return ["-m", "tests.worlds.engines.mock", "--gap", str(gap), *ending]


@contextmanager
def running(
    home: Path,
    kafka: str | None,
    run: str,
    *,
    engine: Sequence[str] = (),
    base: Path = EXAMPLE / "base",
    task: Path = EXAMPLE / "task.toml",
    **chosen: Any,
) -> Iterator[GatewayWorld]:
    """An engine and the gateway, until the block ends.

    Args:
        home: will be made.
        kafka: where the broker is; None: the log in the home.
        run: names the run.
        engine: what follows `python`; it prints its port. By default a mock's.
        base: the policy, of which the gateway reads tokenizer and template.
        task: its file.
        chosen: other settings.
    """
    with ExitStack() as stack:
        mock = stack.enter_context(process(list(engine) or mock_engine()))
        assert mock.stdout is not None
        engine_port = int(mock.stdout.readline())
        settings = Settings(
            requests_per_minute=0,
            signals_per_minute=0,
            home=home,
            run=run,
            policy="gateway",
            base=str(base),
            tasks=(task,),
            web_port=free_port(),
            engine_port=engine_port,
            kafka=kafka,
            **chosen,
        )
        key = prepare_home(settings, {}).app_key or ""
        gateway = stack.enter_context(process(web_of(home)))
        world = GatewayWorld(home, settings.web_url, settings.engine_url, key, psutil.Process(gateway.pid))
        asyncio.run(wait_for(world))
        yield world


def web_of(home: Path) -> list[str]:
    """The gateway's command."""
    return [str(ROOT / "millrace.py"), "web", "--home", str(home)]


async def wait_for(world: GatewayWorld) -> None:
    """Return when the gateway answers a chat.

    Raises:
        RuntimeError: it does not, for two minutes.
    """
    client = client_of(world.gateway, world.key)
    deadline = time.monotonic() + _START_SECONDS
    while (reply := await ask(client, "/v1/chat/completions", chat_body(stream=False))).status != OK:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the gateway does not answer: {reply}")
        await asyncio.sleep(0.1)
    client.close()
