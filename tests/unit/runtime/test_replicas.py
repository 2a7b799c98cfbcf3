"""The arithmetic of limits, the bounds of one process' memory, and the circuit breaker, on clocks that the tests set."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidSettings, Unavailable
from runtime.circuit import RETRY_SECONDS, CircuitBreaker
from runtime.replicas import ANSWER_SECONDS, LEASE_SECONDS, MINUTE, RequestClaim
from runtime.replicas.in_process import LocalIdempotencyStore, LocalLimiter
from runtime.replicas.on_redis import connect
from tests.worlds.passing import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


async def test_a_key_spends_its_minute_at_once_and_gets_it_back_evenly(clock: Clock) -> None:
    limiter = LocalLimiter(clock)
    waits = [(await limiter.allow("k", 60)).wait_seconds for _ in range(61)]
    assert waits == [0.0] * 60 + [pytest.approx(1.0)]
    clock.now += 1.0
    assert (await limiter.allow("k", 60)).wait_seconds == 0
    assert (await limiter.allow("k", 60)).wait_seconds == pytest.approx(1.0)
    clock.now += MINUTE
    assert (await limiter.allow("k", 60)).remaining == 59


@given(st.integers(1, 500), st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20)), max_size=200))
async def test_no_minute_holds_more_than_two_limits_and_a_piece(limit: int, asked: list[tuple[float, int]]) -> None:
    clock = Clock(1000.0)
    limiter = LocalLimiter(clock)
    allowed: list[tuple[float, int]] = []
    for pause, num in asked:
        clock.now += pause
        allowance = await limiter.allow("k", limit, num)
        if allowance.wait_seconds == 0:
            allowed.append((clock.now, num))
    for start, _ in allowed:
        assert sum(num for at, num in allowed if start <= at < start + MINUTE) <= 2 * limit + 20


async def test_a_retry_after_the_wait_is_allowed(clock: Clock) -> None:
    limiter = LocalLimiter(clock)
    for num in (7, 3, 30, 1):
        wait = (await limiter.allow("k", 7, num)).wait_seconds
        if wait > 0:
            clock.now += wait
            assert (await limiter.allow("k", 7, num)).wait_seconds == 0


async def test_paid_keys_are_forgotten(clock: Clock) -> None:
    limiter = LocalLimiter(clock)
    for number in range(5000):
        clock.now += 1.0
        await limiter.allow(str(number), 60)
    assert len(limiter._paid_at) < 5000


def a_claim(name: str) -> RequestClaim:
    return RequestClaim(b"body", name.encode())


async def test_leases_and_answers_end(clock: Clock) -> None:
    store = LocalIdempotencyStore(clock)
    first, second, third = a_claim("1"), a_claim("2"), a_claim("3")
    assert await store.claim("k", first) == first
    clock.now += LEASE_SECONDS - 0.1
    await store.renew("k", first)
    clock.now += LEASE_SECONDS - 0.1
    assert await store.claim("k", second) == first
    clock.now += 0.2
    assert await store.claim("k", second) == second
    await store.finish("k", second, b"answer")
    clock.now += ANSWER_SECONDS - 1
    assert (await store.claim("k", third)).answer == b"answer"
    clock.now += 2
    assert await store.claim("k", third) == third


async def test_a_store_is_bounded_in_number(clock: Clock) -> None:
    store = LocalIdempotencyStore(clock, max_claims=10)
    for number in range(30):
        await store.finish(str(number), a_claim("x"), b"answer")
    kept = [n for n in range(30) if (await store.claim(str(n), a_claim("y"))).answer]
    assert len(store._claims) == 10
    assert kept == []  # each claim drives out an older one
    assert (await store.claim("29", a_claim("z"))).holder == b"y"


async def test_a_store_is_bounded_in_bytes(clock: Clock) -> None:
    store = LocalIdempotencyStore(clock, max_bytes=10_000)
    for number in range(30):
        await store.finish(str(number), a_claim("x"), bytes(2000))
    assert store._num_bytes <= 10_000
    assert (await store.claim("29", a_claim("y"))).answer == bytes(2000)
    assert (await store.claim("0", a_claim("y"))).answer is None
    await store.finish("huge", a_claim("x"), bytes(20_000))
    assert (store._num_bytes, len(store._claims)) == (0, 0)


def test_an_open_circuit_lets_one_try_through(clock: Clock) -> None:
    circuit = CircuitBreaker("redis:1", errors=(redis.RedisError, OSError), clock=clock)
    num_calls = 0

    def call(*, works: bool) -> bool:
        nonlocal num_calls
        try:
            with circuit.calling():
                num_calls += 1
                if not works:
                    raise redis.ConnectionError("refused")
        except Unavailable:
            return False
        return True

    assert call(works=True)
    assert not call(works=False)
    assert [call(works=True) for _ in range(50)] == [False] * 50
    assert num_calls == 2
    clock.now += RETRY_SECONDS
    assert [call(works=False) for _ in range(50)] == [False] * 50
    assert num_calls == 3
    clock.now += RETRY_SECONDS
    assert [call(works=True) for _ in range(50)] == [True] * 50


def test_while_one_tries_the_others_do_not_wait_and_older_calls_prove_nothing(clock: Clock) -> None:
    circuit = CircuitBreaker("redis:1", errors=(redis.RedisError, OSError), clock=clock)
    older = circuit.calling()
    older.__enter__()
    with pytest.raises(Unavailable), circuit.calling():
        raise TimeoutError
    older.__exit__(None, None, None)
    with pytest.raises(Unavailable), circuit.calling():
        pytest.fail("an older success closed the circuit")
    clock.now += RETRY_SECONDS
    with circuit.calling(), pytest.raises(Unavailable), circuit.calling():
        pytest.fail("two tried at once")
    with circuit.calling():
        pass


def test_a_mistake_is_not_an_outage(clock: Clock) -> None:
    circuit = CircuitBreaker("redis:1", errors=(redis.RedisError, OSError), clock=clock)
    with pytest.raises(KeyError), circuit.calling():
        raise KeyError
    with circuit.calling():
        pass


def test_a_wrong_url_is_a_wrong_setting() -> None:
    with pytest.raises(InvalidSettings, match="redis: "):
        connect("http://127.0.0.1:6379", "test.")
