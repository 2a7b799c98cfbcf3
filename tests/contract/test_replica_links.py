"""The links between replicas: one suite, in one process and over a real Redis."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from runtime.replicas import ReplicaLinks, RequestClaim
from runtime.replicas.in_process import local_links
from runtime.replicas.on_redis import connect

SERVER = os.environ.get("MILLRACE_REDIS")
SECONDS = 10.0


class Replicas(NamedTuple):
    """Two processes of one home; in one process both are the same."""

    one: ReplicaLinks
    two: ReplicaLinks


@pytest_asyncio.fixture(params=["in_process", pytest.param("redis", marks=pytest.mark.services)])
async def replicas(request: pytest.FixtureRequest) -> AsyncIterator[Replicas]:
    if request.param == "in_process":
        one = local_links()
        pair = Replicas(one, one)
    elif SERVER is None:
        pytest.skip("no MILLRACE_REDIS: run make test-services")
    else:
        prefix = f"test-{secrets.token_hex(6)}."
        # A slow test machine must not look like an outage.
        pair = Replicas(connect(SERVER, prefix, SECONDS), connect(SERVER, prefix, SECONDS))
    yield pair
    for replica in pair:
        await replica.aclose()


def a_claim(body: bytes = b"body") -> RequestClaim:
    return RequestClaim(body, secrets.token_bytes(8))


async def test_a_limit_is_shared_and_counted_down(replicas: Replicas) -> None:
    allowances = [await replica.limiter.allow("key", 2) for replica in replicas]
    assert [(a.remaining, a.wait_seconds, a.limit) for a in allowances] == [(1, 0.0, 2), (0, 0.0, 2)]
    refused = await replicas.one.limiter.allow("key", 2)
    assert 0 < refused.wait_seconds <= 30
    assert refused.remaining == 0
    assert 30 < refused.reset_seconds <= 60


async def test_what_was_refused_is_not_counted(replicas: Replicas) -> None:
    assert (await replicas.one.limiter.allow("key", 4, 3)).wait_seconds == 0
    assert (await replicas.two.limiter.allow("key", 4, 2)).wait_seconds > 0
    assert (await replicas.one.limiter.allow("key", 4, 1)).wait_seconds == 0


async def test_keys_do_not_share(replicas: Replicas) -> None:
    await replicas.one.limiter.allow("key", 1)
    assert (await replicas.one.limiter.allow("other", 1)).wait_seconds == 0


async def test_more_than_the_limit_at_once_is_allowed_and_owed(replicas: Replicas) -> None:
    first = await replicas.one.limiter.allow("key", 10, 20)
    assert (first.wait_seconds, first.remaining) == (0, 0)
    refused = await replicas.two.limiter.allow("key", 10)
    assert 6 < refused.wait_seconds <= 66


async def test_a_limit_comes_back(replicas: Replicas) -> None:
    limiter = replicas.one.limiter
    await limiter.allow("key", 6000, 6000)
    deadline = time.monotonic() + SECONDS
    while (await limiter.allow("key", 6000)).wait_seconds > 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_the_first_claim_holds_and_its_answer_is_kept(replicas: Replicas) -> None:
    one, two = replicas.one.idempotency, replicas.two.idempotency
    first = a_claim()
    assert await one.claim("k", first) == first
    assert await two.claim("k", a_claim()) == first
    await one.renew("k", first)
    assert await two.claim("k", a_claim(b"other")) == first
    await one.finish("k", first, b"\x00answer\xff")
    held = await two.claim("k", a_claim())
    assert (held.digest, held.answer) == (b"body", b"\x00answer\xff")


async def test_a_released_key_is_free(replicas: Replicas) -> None:
    first, second = a_claim(), a_claim(b"other")
    await replicas.one.idempotency.claim("k", first)
    await replicas.one.idempotency.release("k", first)
    assert await replicas.two.idempotency.claim("k", second) == second


async def test_a_run_that_lost_its_claim_changes_nothing(replicas: Replicas) -> None:
    store, late, holder = replicas.one.idempotency, a_claim(), a_claim()
    await replicas.two.idempotency.claim("k", holder)
    await store.renew("k", late)
    await store.release("k", late)
    await store.finish("k", late, b"late")
    assert await store.claim("k", a_claim()) == holder
    await replicas.two.idempotency.finish("k", holder, b"mine")
    assert (await store.claim("k", a_claim())).answer == b"mine"


async def test_an_answer_is_kept_though_the_lease_ran_out(replicas: Replicas) -> None:
    claim = a_claim()
    await replicas.one.idempotency.finish("k", claim, b"late")
    assert (await replicas.two.idempotency.claim("k", a_claim())).answer == b"late"


async def test_a_bell_wakes_its_listeners_and_no_others(replicas: Replicas) -> None:
    here, there, other = threading.Event(), threading.Event(), threading.Event()
    replicas.one.bell.listen("moved", here.set)
    replicas.two.bell.listen("moved", there.set)
    deadline = time.monotonic() + SECONDS
    while not (here.is_set() and there.is_set()):  # a listener that is not subscribed yet misses a ring
        assert time.monotonic() < deadline
        replicas.one.bell.ring("moved")
        await asyncio.sleep(0.01)
    there.clear()
    here.clear()
    replicas.two.bell.listen("other", other.set)
    await asyncio.to_thread(_ring_until, replicas, here, there)
    assert not other.is_set()


def _ring_until(replicas: Replicas, here: threading.Event, there: threading.Event) -> None:
    replicas.two.bell.ring("moved")
    assert here.wait(SECONDS)
    assert there.wait(SECONDS)


async def test_a_closed_bell_is_silent(replicas: Replicas) -> None:
    woken = threading.Event()
    replicas.one.bell.listen("moved", woken.set)
    replicas.one.bell.close()
    replicas.one.bell.close()
    woken.clear()
    replicas.two.bell.ring("moved")
    assert not woken.is_set()
