import time

from contracts import heartbeats
from contracts.heartbeats import NEEDED, ProcessBeat
from runtime.settings import Settings
from services.dashboard.live.pulses import START_SECONDS, Pulses
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import writing
from tests.worlds.dashboard.seed import POLICY


def beats(at: float, *names: str) -> list[ProcessBeat]:
    return [ProcessBeat(name, "a/1", at, at, 120.0) for name in names or NEEDED]


def down(pulses: Pulses, signs: list[ProcessBeat], now: float) -> set[str]:
    return {state.process for state in pulses.statuses(signs, now) if state.state == "down"}


def test_clocks_that_differ_raise_no_alarm_and_silence_does() -> None:
    pulses = Pulses()
    for second in range(10):
        assert down(pulses, beats(1000.0 + second - 30, *NEEDED), 1000.0 + second) == set(), "a clock 30 s behind"
    last = beats(1000.0 + 9 - 30)
    assert down(pulses, last, 1000.0 + 14) == set()
    assert down(pulses, last, 1000.0 + 16) == set(NEEDED)


def test_who_was_silent_for_minutes_is_down_at_the_first_look() -> None:
    assert down(Pulses(), beats(900.0), 1000.0) == set(NEEDED)


def test_slow_starters_are_missed_later() -> None:
    pulses = Pulses()
    assert down(pulses, beats(1000.0, "rewards"), 1000.0) == set()
    later = 1000.0 + START_SECONDS
    assert down(pulses, beats(later, "rewards"), later) == set(NEEDED) - {"rewards"}


def test_the_state_names_who_is_down(small: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    with writing(small) as connection:
        for sign in beats(now):
            heartbeats.beat(connection, POLICY, sign)
        heartbeats.beat(connection, POLICY, ProcessBeat("rewards", "a/1", now - 100, now - 100, 120.0))
    found = {row.process: (row.state, row.says) for row in reader_of(small).read(now).processes}
    assert found["episodes"] == ("up", "")
    assert found["rewards"] == ("down", "rewards (a/1) is down: silent for 100 s")
