import pytest

from services.dashboard.live.watcher import COST_SHARE, LEAST_SECONDS, MOST_SECONDS, ThrottledValue
from tests.worlds.passing import Clock


@pytest.mark.parametrize(("cost", "period"), [(0.0, LEAST_SECONDS), (0.5, 0.5 / COST_SHARE), (3600.0, MOST_SECONDS)])
def test_an_expensive_value_is_read_less_often(cost: float, period: float) -> None:
    clock, reads = Clock(), []

    def read() -> int:
        reads.append(clock.now)
        clock.now += cost
        return len(reads)

    held = ThrottledValue[int](clock)
    assert held.get(read) == 1
    clock.now = period - 0.001
    assert held.get(read) == 1
    clock.now = period
    assert held.get(read) == 2


def test_readers_that_share_the_time_each_read_less_often() -> None:
    clock = Clock()
    held = ThrottledValue[float](clock)

    def read() -> float:
        clock.now += 0.25
        return clock.now

    held.get(read, COST_SHARE / 4)
    clock.now = 4 * 0.25 / COST_SHARE - 0.001
    assert held.get(read, COST_SHARE / 4) == 0.25
    clock.now += 0.002
    assert held.get(read, COST_SHARE / 4) > 4 * 0.25 / COST_SHARE


def test_a_failed_read_keeps_the_old_value() -> None:
    clock = Clock()
    held = ThrottledValue[str](clock)
    held.get(lambda: "old")
    clock.now = 5.0

    def fail() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        held.get(fail)
    clock.now = 0.5
    assert held.get(fail) == "old"
