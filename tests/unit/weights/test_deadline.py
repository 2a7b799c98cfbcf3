"""How long an answer may take: pure, on a clock of the test's."""

from weights.stores.deadline import AnswerDeadline


def test_bytes_earn_time_and_silence_does_not() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        assert deadline.seconds_left() == 10.0
        now[0] = 9.0
        deadline.count(1)
        assert 1.0 < deadline.seconds_left() < 1.02
        now[0] = 10.5
        assert deadline.seconds_left() < 0
        deadline.count(1000)
        assert deadline.seconds_left() > 9.0


def test_one_byte_at_a_time_does_not_go_on_without_end() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        num_reads = 0
        while deadline.seconds_left() > 0:
            now[0] += 1.0
            deadline.count(1)
            num_reads += 1
    assert num_reads == 11


def test_what_came_is_worth_asking_for_the_rest_only_at_the_rate() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        now[0] = 5.0
        assert [deadline.is_fast_enough(399), deadline.is_fast_enough(400)] == [False, True]


def test_outside_of_a_request_there_is_no_deadline() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        pass
    now[0] = 1000.0
    assert deadline.seconds_left() == 10.0
