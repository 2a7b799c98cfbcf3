"""The HTTP client against raw sockets that send exactly given bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from services.inference.engine.http import IDLE_SECONDS, Broken, Closed, HttpClient, NoConnection, Silent, TooLong

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Plays one script for each connection.

    Attributes:
        num_connections: that were made.
        requests: their first lines.
    """

    def __init__(self, script: Script) -> None:
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        self._script = script

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            await self._script(reader, writer)
        finally:
            writer.close()
            self.closed.set()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.split(b"\r\n")[0])
        [length] = [line for line in head.split(b"\r\n") if line.startswith(b"content-length")]
        return await reader.readexactly(int(length.partition(b":")[2]))


@asynccontextmanager
async def serving(
    script: Callable[[Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], read_seconds: float = 5.0
) -> AsyncIterator[tuple[Server, HttpClient]]:
    server = Server(lambda reader, writer: script(server, reader, writer))
    listening = await asyncio.start_server(server.play, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", read_seconds=read_seconds)
    yield server, client
    client.close()
    listening.close()
    await listening.wait_closed()


async def answer_all(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            await server.request(reader)
        except asyncio.IncompleteReadError:
            return
        writer.write(WHOLE)


async def answer_one(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await server.request(reader)
    writer.write(WHOLE)


async def test_one_connection_carries_one_request_after_another() -> None:
    async with serving(answer_all) as (server, client):
        for body in (b"", b"x" * 100_000):
            assert await client.fetch("POST", "/inference/v1/generate", body) == (200, b"ok")
        assert server.num_connections == 1
        assert server.requests == [b"POST /inference/v1/generate HTTP/1.1"] * 2


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async with serving(answer_all) as (server, client):
        exchanges = await asyncio.gather(*(client.begin("GET", "/health") for _ in range(3)))
        assert [exchange.status for exchange in exchanges] == [200] * 3
        assert server.num_connections == 3
        for exchange in exchanges:
            await exchange.read_all()
            exchange.end()


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async with serving(answer_one) as (server, client):
        for _ in range(5):
            assert await client.fetch("GET", "/health") == (200, b"ok")
        assert server.num_connections == 5


async def test_a_body_comes_as_it_is_sent() -> None:
    go = asyncio.Event()

    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await go.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with serving(script) as (_, client):
        exchange = await client.begin("POST", "/")
        assert await exchange.read() == b"one"
        go.set()
        assert await exchange.read() == b"two"
        assert await exchange.read() == b""
        exchange.end()


async def test_an_answer_that_is_given_up_is_cut_off() -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()  # until the client closes

    async with serving(script) as (server, client):
        exchange = await client.begin("POST", "/")
        assert await exchange.read() == b"one"
        exchange.end()
        await asyncio.wait_for(server.closed.wait(), 5)


async def test_a_connection_is_kept_for_its_formalities() -> None:
    go = asyncio.Event()

    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await go.wait()
        writer.write(b"0\r\n\r\n")
        await answer_one(server, reader, writer)

    async with serving(script) as (server, client):
        exchange = await client.begin("POST", "/")
        assert await exchange.read() == b"one"
        exchange.end(only_formalities=True)
        go.set()
        while not client._idle:  # noqa: ASYNC110 the end of a chunk wakes nobody
            await asyncio.sleep(0.001)
        assert await client.fetch("GET", "/health") == (200, b"ok")
        assert server.num_connections == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [(b"", "closed"), (CHUNKED + b"3\r\no", "closed"), (WHOLE[:-1], "closed"), (b"SSH-2.0-hello\r\n", "not HTTP")],
)
async def test_what_is_no_whole_answer_is_broken(said: bytes, reason: str) -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(said)

    async with serving(script) as (_, client):
        with pytest.raises(Broken, match=reason):
            await client.fetch("POST", "/")


async def test_no_server_is_broken() -> None:
    with pytest.raises(NoConnection):
        await HttpClient("http://127.0.0.1:1").fetch("GET", "/health")


async def test_a_server_that_closes_after_each_answer_is_asked_anew() -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        await reader.read()  # until the client closes

    async with serving(script) as (server, client):
        for _ in range(2):
            assert await client.fetch("GET", "/health") == (200, b"ok")
        assert server.num_connections == 2


async def test_a_post_that_may_have_been_read_is_not_sent_again() -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(WHOLE)
        await server.request(reader)  # read, and closed without an answer

    async with serving(script) as (server, client):
        assert await client.fetch("POST", "/inference/v1/generate", b"{}") == (200, b"ok")
        with pytest.raises(Closed):
            await client.fetch("POST", "/inference/v1/generate", b"{}")
        assert len(server.requests) == 2
        for _ in range(2):  # the second on a kept connection: asking twice for a state does no harm
            assert await client.fetch("GET", "/state") == (200, b"ok")


async def test_a_connection_that_was_idle_for_long_is_not_used() -> None:
    async with serving(answer_all) as (server, client):
        assert await client.fetch("POST", "/") == (200, b"ok")
        [kept] = client._idle
        kept.idle_since -= IDLE_SECONDS
        assert await client.fetch("POST", "/") == (200, b"ok")
        assert server.num_connections == 2


async def test_an_answer_that_nobody_asked_for_is_taken_for_none() -> None:
    told = asyncio.Event()

    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(WHOLE)
        await told.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await answer_all(server, reader, writer)

    async with serving(script) as (server, client):
        assert await client.fetch("POST", "/") == (200, b"ok")
        told.set()
        while client._idle:  # noqa: ASYNC110 a closed connection wakes nobody
            await asyncio.sleep(0.001)
        assert await client.fetch("POST", "/") == (200, b"ok")
        assert server.num_connections == 2


@pytest.mark.parametrize("said", [b"", CHUNKED, CHUNKED + b"3\r\none\r\n"])
async def test_a_server_that_says_no_more_is_silent(said: bytes) -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(said)
        await reader.read()  # until the client closes

    async with serving(script, read_seconds=0.05) as (_, client):
        with pytest.raises(Silent, match=r"silent for 0\.05 s"):
            await client.fetch("POST", "/")


async def test_no_more_is_read_than_is_wanted() -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(CHUNKED + 1000 * (b"400\r\n" + b"x" * 0x400 + b"\r\n"))
        await reader.read()  # until the client closes

    async with serving(script) as (server, client):
        with pytest.raises(TooLong, match="more than 10000 bytes"):
            await client.fetch("GET", "/", most_bytes=10_000)
        await asyncio.wait_for(server.closed.wait(), 5)


async def test_when_to_come_again_is_read_whatever_its_case() -> None:
    async def script(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(b"HTTP/1.1 429 X\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n")

    async with serving(script) as (_, client):
        exchange = await client.begin("POST", "/")
        assert (exchange.status, exchange.retry_after) == (429, b"7")
        exchange.end()
