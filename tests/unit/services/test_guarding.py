"""Abusive connections are closed, while other connections are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI

from contracts.errors import Unavailable
from runtime.operations import Operations
from services import guarding
from services.guarding import MAX_HEADER_BYTES, FailedKeys, address_of
from services.serving import Measured, make_web
from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.servers import START, attacks, impatient, sized, talk
from tests.unit.services.serving import serve


@pytest.fixture
def url() -> Iterator[str]:
    with serve(Measured(sized(), "sample")) as place:
        yield place


@pytest.fixture
def hurried() -> Iterator[None]:
    with impatient():
        yield


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
@pytest.mark.slow
def test_attacks_are_refused(attack: Attack) -> None:
    assert attack.run() is None


def test_a_complete_request_with_large_headers_is_told_why(url: str) -> None:
    answer = httpx.post(f"{url}/size", headers={"x": "a" * MAX_HEADER_BYTES})
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "headers_too_large"


def test_headers_just_below_pass(url: str) -> None:
    assert httpx.post(f"{url}/size", headers={"x": "a" * (MAX_HEADER_BYTES - 500)}).status_code == 200


@pytest.mark.slow
def test_large_bodies_pass_whole_and_in_small_pieces(url: str) -> None:
    with httpx.Client(base_url=url) as client:  # one connection: what a request leaves behind must not hurt the next
        for _ in range(3):
            assert client.post("/size", content=b"a" * 3_000_000).json()["bytes"] == 3_000_000
            assert client.post("/size", content=(b"abc" for _ in range(20_000))).json()["bytes"] == 60_000


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ((), b""),
        ((b"\r\n",), b""),
        ((START,), b"HTTP/1.1 408"),
        (tuple(START[i : i + 1] for i in range(30)), b"HTTP/1.1 408"),
        ((START + b"content-length: 10\r\n\r\nabc",), b"HTTP/1.1 500"),
    ],
    ids=["silence", "an empty line", "half of the headers", "a byte at a time", "half of the body"],
)
def test_slow_senders_are_hung_up_on(url: str, pieces: tuple[bytes, ...], status: bytes) -> None:
    answer = talk(url, *pieces, seconds=10)
    assert answer.startswith(status) or answer == b"", answer


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_a_slow_answer_is_no_slow_sender() -> None:
    app = FastAPI(title="Millrace sample")

    @app.get("/")
    async def slow() -> dict[str, bool]:
        await asyncio.sleep(0.8)
        return {"done": True}

    with serve(Measured(app, "sample")) as place, httpx.Client(base_url=place) as client:
        assert client.get("/").json() == {"done": True}
        assert client.get("/").json() == {"done": True}


def test_refused_keys_wait_longer_and_longer() -> None:
    now = 0.0
    failed = FailedKeys(lambda: now)
    waits = [failed.wait_seconds("a") for _ in range(40)]
    assert waits[:10] == [0.0] * 10
    assert 0 < waits[10] < waits[12] < waits[39] <= 4
    assert failed.wait_seconds("b") == 0.0
    now = 3600.0
    assert failed.wait_seconds("a") == 0.0


def test_a_known_key_never_waits_behind_refused_ones(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        for _ in range(11):
            assert client.get("/secret").status_code == 401
        with ThreadPoolExecutor() as pool:
            refused = pool.submit(httpx.get, f"{url}/secret")
            assert client.get("/secret", headers={"authorization": "good"}).status_code == 200
            assert not refused.done()
        assert refused.result().status_code == 401


async def test_too_many_refused_keys_at_once_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "MAX_WAITING", 2)
    failed = FailedKeys()
    for _ in range(10):
        assert await failed.hold_back("a")
    held = [asyncio.create_task(failed.hold_back("a")) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await failed.hold_back("a")
    assert await asyncio.gather(*held) == [True, True]
    assert failed.num_waiting == 0


def test_one_sender_has_a_whole_network_of_ipv6() -> None:
    one, other = ({"client": (host, 1)} for host in ("2001:db8:1:2:3::4", "2001:db8:1:2:9::9"))
    assert address_of(one) == address_of(other)
    assert address_of({"client": ("10.0.0.1", 1)}) != address_of({"client": ("10.0.0.2", 1)})
    assert address_of({}) == ""


def test_ready_looks_once_a_second_however_many_ask() -> None:
    looks: list[float] = []

    def check() -> None:
        looks.append(time.monotonic())
        time.sleep(0.05)
        raise Unavailable("away")

    started = time.monotonic()
    with (
        serve(make_web({"/": FastAPI(title="Millrace sample")}, Operations({"it": check}))) as url,
        httpx.Client() as client,
    ):
        answers = [client.get(f"{url}/ready") for _ in range(50)]
    assert {answer.status_code for answer in answers} == {503}
    assert answers[-1].json()["problems"] == {"it": "away"}
    assert len(looks) <= 1 + (time.monotonic() - started)
    operations = Operations({"it": check})
    before = len(looks)
    started = time.monotonic()
    assert {operations.answer("/ready").status for _ in range(50)} == {503}
    assert len(looks) - before <= 1 + (time.monotonic() - started)
