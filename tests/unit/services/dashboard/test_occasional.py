import pytest

from services.dashboard.occasional import COST_SHARE, LEAST_SECONDS, MOST_SECONDS, Occasional


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("cost", "period"), [(0.0, LEAST_SECONDS), (0.5, 0.5 / COST_SHARE), (3600.0, MOST_SECONDS)])
def test_what_costs_more_is_read_less_often(cost: float, period: float) -> None:
    clock, reads = Clock(), []

    def read() -> int:
        reads.append(clock.now)
        clock.now += cost
        return len(reads)

    held = Occasional[int](clock)
    assert held.get(read) == 1
    clock.now = period - 0.001
    assert held.get(read) == 1
    clock.now = period
    assert held.get(read) == 2


def test_a_failed_read_keeps_the_old_value() -> None:
    clock = Clock()
    held = Occasional[str](clock)
    held.get(lambda: "old")
    clock.now = 5.0

    def fail() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        held.get(fail)
    clock.now = 0.5
    assert held.get(fail) == "old"
