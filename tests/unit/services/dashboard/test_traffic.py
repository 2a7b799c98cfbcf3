from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from contracts.event_log import Consumer, LoadPosition, LogRecord, Message
from services.dashboard.traffic import RATE_SECONDS, Traffic, read_traffic

TOPIC = "signals"


class ListLog:
    """A log of append times, one list a partition."""

    def __init__(self, times: list[list[float]]) -> None:
        self.num_partitions = len(times)
        self.num_reads = 0
        self._times = times

    def create_topics(self) -> None:
        raise AssertionError

    def append(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> Consumer:
        raise AssertionError(group, topics, load_position)

    def ends(self, topic: str) -> dict[int, int]:
        assert topic == TOPIC
        return {part: len(times) for part, times in enumerate(self._times)}

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        self.num_reads += 1
        times = self._times[partition][offset : offset + limit]
        return [LogRecord(topic, partition, offset + place, "", b"", at) for place, at in enumerate(times)]

    def close(self) -> None:
        pass


partitions = st.lists(st.lists(st.integers(0, 200).map(float), max_size=40).map(sorted), min_size=1, max_size=4)


@given(partitions, st.integers(-1, 201))
def test_the_count_equals_a_look_at_every_record(times: list[list[float]], since: int) -> None:
    recent = sum(at >= since for part in times for at in part)
    assert read_traffic(ListLog(times), TOPIC, "episodes", {}, since + RATE_SECONDS).num_recent == recent


def test_a_hundred_thousand_records_take_a_few_dozen_reads() -> None:
    log = ListLog([[number / 100 for number in range(100_000)]])
    assert read_traffic(log, TOPIC, "episodes", {("episodes", TOPIC, 0): 99_000}, 1000.0) == Traffic(6000, 1000, 990.0)
    assert log.num_reads < 40


def test_what_waits_lies_between_the_position_and_the_end() -> None:
    now = 1000.0
    log = ListLog([[900.0, 950.0, 990.0], [], [980.0]])
    positions = {("episodes", TOPIC, 0): 1, ("rewards", TOPIC, 2): 1}
    assert read_traffic(log, TOPIC, "episodes", positions, now) == Traffic(3, 3, 950.0)
    assert read_traffic(log, TOPIC, "rewards", positions, now) == Traffic(3, 3, 900.0)
    assert RATE_SECONDS == 60.0


def test_nothing_waits_when_everything_is_handled() -> None:
    log = ListLog([[900.0]])
    assert read_traffic(log, TOPIC, "episodes", {("episodes", TOPIC, 0): 1}, 1000.0) == Traffic(0, 0, None)
