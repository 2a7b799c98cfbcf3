from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from contracts.event_log import Consumer, LoadPosition, LogPlace, LogRecord, Message, TopicState
from services.dashboard.live.traffic import CONSUMERS, RATE_SECONDS, PartitionLag, Positions, Traffic, TrafficReader

TOPIC = "signals"


class ListLog:
    """A log of append times, one list a partition."""

    def __init__(self, times: list[list[float]]) -> None:
        self.num_partitions = len(times)
        self.num_reads = 0
        self._times = times

    def create_topics(self) -> None:
        raise AssertionError

    def check_topics(self) -> None:
        raise AssertionError

    def append(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> Consumer:
        raise AssertionError(group, topics, load_position)

    def ends(self, topic: str) -> dict[int, int]:
        assert topic in CONSUMERS
        return {part: len(times) for part, times in enumerate(self._times)}

    def describe(self) -> dict[str, TopicState]:
        raise AssertionError

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        self.num_reads += 1
        times = self._times[partition][offset : offset + limit]
        return [LogRecord(topic, partition, offset + place, "", b"", at) for place, at in enumerate(times)]

    def read_each(self, topic: str, places: Collection[LogPlace]) -> dict[LogPlace, LogRecord]:
        raise AssertionError(topic, places)

    def close(self) -> None:
        pass


def look(log: ListLog, positions: Positions, now: float) -> Traffic:
    return TrafficReader(log).read(TOPIC, positions, now)


partitions = st.lists(st.lists(st.integers(0, 200).map(float), max_size=40).map(sorted), min_size=1, max_size=4)


@given(partitions, st.integers(-1, 201))
def test_the_count_equals_a_look_at_every_record(times: list[list[float]], since: int) -> None:
    recent = sum(at >= since for part in times for at in part)
    assert look(ListLog(times), {}, since + RATE_SECONDS).num_recent == recent


def test_a_hundred_thousand_records_take_a_few_dozen_reads() -> None:
    log = ListLog([[number / 100 for number in range(100_000)]])
    seen = look(log, {("episodes", TOPIC, 0): 99_000}, 1000.0)
    assert (seen.num_recent, seen.num_waiting, seen.oldest_at) == (6000, 1000, 990.0)
    assert log.num_reads < 40


def test_waiting_records_lie_between_the_position_and_the_end() -> None:
    now = 1000.0
    log = ListLog([[900.0, 950.0, 990.0], [], [980.0]])
    positions = {("episodes", TOPIC, 0): 1, ("rewards", TOPIC, 2): 1, ("episodes", "outcomes", 2): 1}
    assert look(log, positions, now) == Traffic(
        3, 3, 950.0, [PartitionLag(0, 3, 1, 950.0), PartitionLag(1, 0, 0, None), PartitionLag(2, 1, 0, 980.0)]
    )
    assert look(log, {}, now)[:3] == (3, 4, 900.0)
    assert RATE_SECONDS == 60.0


def test_nothing_waits_when_everything_is_handled() -> None:
    log = ListLog([[900.0]])
    assert look(log, {("episodes", TOPIC, 0): 1}, 1000.0)[:3] == (0, 0, None)


def test_positions_that_lie_elsewhere_are_not_guessed() -> None:
    seen = TrafficReader(ListLog([[900.0], []])).read("experiences", {}, 1000.0)
    assert seen == Traffic(0, 0, None, [PartitionLag(0, 1, None, None), PartitionLag(1, 0, None, None)])
    assert seen.num_appended == 1


def test_once_the_last_minute_is_known_the_log_is_not_searched_again() -> None:
    times = [[float(second) for second in range(940, 1000)]]
    log = ListLog(times)
    lookout, handled = TrafficReader(log), {("episodes", TOPIC, 0): 10**6}
    assert lookout.read(TOPIC, handled, 1000.0).num_recent == 60
    before = log.num_reads
    for now in range(1001, 1090):
        times[0].append(float(now))
        assert abs(lookout.read(TOPIC, handled, float(now)).num_recent - 60) <= 1
    assert log.num_reads == before


def test_after_a_gap_the_log_is_searched() -> None:
    times = [[990.0]]
    log = ListLog(times)
    lookout = TrafficReader(log)
    assert lookout.read(TOPIC, {}, 1000.0).num_recent == 1
    times[0] += [1500.0, 1999.0]
    assert lookout.read(TOPIC, {}, 2000.0).num_recent == 1


def test_the_oldest_waiting_record_is_read_once() -> None:
    log = ListLog([[990.0, 995.0]])
    lookout = TrafficReader(log)
    lookout.read(TOPIC, {}, 1000.0)
    before = log.num_reads
    assert lookout.read(TOPIC, {}, 1001.0).oldest_at == 990.0
    assert log.num_reads == before
    assert lookout.read(TOPIC, {("episodes", TOPIC, 0): 1}, 1002.0).oldest_at == 995.0
