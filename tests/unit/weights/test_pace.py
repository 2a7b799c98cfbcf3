"""How long an answer may take: pure, on a clock of the test's."""

from weights.stores.pace import Pace


def test_bytes_earn_time_and_silence_does_not() -> None:
    now = [0.0]
    pace = Pace(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with pace.begun():
        assert pace.left() == 10.0
        now[0] = 9.0
        pace.came(1)
        assert 1.0 < pace.left() < 1.02
        now[0] = 10.5
        assert pace.left() < 0
        pace.came(1000)
        assert pace.left() > 9.0


def test_one_byte_at_a_time_does_not_go_on_for_ever() -> None:
    now = [0.0]
    pace = Pace(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with pace.begun():
        num_reads = 0
        while pace.left() > 0:
            now[0] += 1.0
            pace.came(1)
            num_reads += 1
    assert num_reads == 11


def test_what_came_is_worth_asking_for_the_rest_only_at_the_rate() -> None:
    now = [0.0]
    pace = Pace(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with pace.begun():
        now[0] = 5.0
        assert [pace.is_kept(399), pace.is_kept(400)] == [False, True]


def test_outside_of_a_request_there_is_no_deadline() -> None:
    now = [0.0]
    pace = Pace(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with pace.begun():
        pass
    now[0] = 1000.0
    assert pace.left() == 10.0
