"""The engine refuses every route without its key, whatever a client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from contracts.errors import OriginRefused, Unauthorized, UnsupportedMediaType
from runtime.engine_key import authorization
from services.engine.guard import refuse
from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.engine import KEY, OPEN, ClosedEngine, attacks
from tests.each_case import each_case

BEARER = (b"authorization", authorization(KEY)["authorization"].encode())
JSON = (b"content-type", b"application/json")


@pytest.fixture
def closed() -> Iterator[ClosedEngine]:
    closed = ClosedEngine()
    yield closed
    closed.engine.close()


def test_the_matrix_has_every_route(closed: ClosedEngine) -> None:
    routes = closed.routes()
    assert OPEN in routes
    assert {("POST", path) for path in ("/inference/v1/generate", "/pause", "/resume", "/update_weights")} <= set(
        routes
    )
    assert {("GET", path) for path in ("/state", "/v1/models", "/swaps", "/version", "/is_paused")} <= set(routes)
    for method, path in set(routes) - {OPEN}:
        kinds = [door.kind for door in closed.doors() if (door.method, door.path) == (method, path)]
        assert "no key" in kinds
        assert any("origin" in kind for kind in kinds)
        assert any("text/plain" in kind for kind in kinds) == (method == "POST")


def test_no_route_lets_anybody_in(closed: ClosedEngine) -> None:
    assert asyncio.run(closed.open_doors(closed.doors())) == []


def test_the_key_opens_every_route(closed: ClosedEngine) -> None:
    async def statuses() -> dict[str, int]:
        transport = httpx.ASGITransport(closed.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://engine", headers=authorization(KEY)
        ) as client:
            return {
                f"{method} {path}": (
                    await client.request(method, path, json={} if method == "POST" else None)
                ).status_code
                for method, path in closed.routes()
            }

    assert not {401, 403, 404, 405, 415} & set(asyncio.run(statuses()).values())


@pytest.mark.parametrize("attack", attacks()[:2], ids=lambda attack: attack.name)
def test_attacks_are_refused(attack: Attack) -> None:
    assert attack.doors > 5
    assert attack.run() is None


@each_case(
    ("headers", "kind"),
    [
        ([], Unauthorized),
        ([BEARER, BEARER], Unauthorized),
        ([BEARER, (b"origin", b"")], OriginRefused),
        ([(b"origin", b"null")], OriginRefused),
        ([BEARER, (b"content-length", b"2")], UnsupportedMediaType),
        ([BEARER, (b"transfer-encoding", b"chunked")], UnsupportedMediaType),
        ([BEARER, (b"content-type", b"text/plain")], UnsupportedMediaType),
        ([BEARER, JSON, JSON], UnsupportedMediaType),
    ],
)
def test_what_is_refused(headers: list[tuple[bytes, bytes]], kind: type[Exception]) -> None:
    assert isinstance(refuse("POST", "/pause", headers, KEY), kind)


@pytest.mark.parametrize(
    "headers",
    [
        [BEARER],
        [BEARER, (b"content-length", b"0")],
        [BEARER, JSON, (b"content-length", b"2")],
        [BEARER, (b"content-type", b"Application/JSON; charset=utf-8"), (b"transfer-encoding", b"chunked")],
    ],
)
def test_what_is_let_in(headers: list[tuple[bytes, bytes]]) -> None:
    assert refuse("POST", "/pause", headers, KEY) is None


def test_health_is_open_to_a_get_alone() -> None:
    assert refuse("GET", "/health", [], KEY) is None
    assert isinstance(refuse("POST", "/health", [], KEY), Unauthorized)
    assert isinstance(refuse("GET", "/health", [(b"origin", b"http://x")], KEY), OriginRefused)


@pytest.mark.parametrize(
    ("content", "status"), [(b"[" * 1_000_000, 400), (b'"\xff"', 400), (b" " * (16 * 2**20 + 1), 413)]
)
@pytest.mark.parametrize("path", ["/inference/v1/generate", "/update_weights"])
def test_a_body_that_nobody_can_read_is_the_senders_fault(
    closed: ClosedEngine, path: str, content: bytes, status: int
) -> None:
    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(closed.app, raise_app_exceptions=False)
        headers = {**authorization(KEY), "content-type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers=headers) as client:
            return await client.post(path, content=content)

    assert asyncio.run(answer()).status_code == status


def test_a_socket_of_the_web_is_closed(closed: ClosedEngine) -> None:
    said: list[object] = []

    async def send(message: object) -> None:
        said.append(message)

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    asyncio.run(closed.app({"type": "websocket", "path": "/state", "headers": [BEARER]}, receive, send))
    assert said == [{"type": "websocket.close", "code": 1008}]
