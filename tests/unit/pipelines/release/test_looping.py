"""The loop of gate, train and lift: a fault is told and tried again, and ends nothing."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry, Counter

from contracts.errors import InvalidSettings, Unavailable
from pipelines.release import looping
from pipelines.release.looping import Companions, LookLoop
from runtime.operations import Operations


class Looks:
    """Each look does the next thing; after the last one the loop is stopped."""

    def __init__(self, *things: Exception | None) -> None:
        self.stop = threading.Event()
        self.failures = Counter("failures", "x", registry=CollectorRegistry())
        self.loop = LookLoop("here", "nothing seen", self.failures, 0.0, fatal=(InvalidSettings,))
        self.told: list[str | None] = []
        self.num_done = 0
        self._things = list(things)

    def run(self) -> None:
        self.loop.run(self._look, self.stop, done=self._done)

    def _look(self) -> None:
        self.told.append(Operations().problems().get("here"))
        thing = self._things.pop(0)
        if not self._things:
            self.stop.set()
        if thing is not None:
            raise thing

    def _done(self) -> None:
        self.num_done += 1


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looping, "_RETRY_SECONDS", 0.0)


def test_a_fault_is_told_until_a_look_ends_well() -> None:
    looks = Looks(Unavailable("no database"), ZeroDivisionError("x"), None, None)
    looks.run()
    assert looks.told == [
        None,
        "nothing seen, 1 times in a row: no database",
        "nothing seen, 2 times in a row: ZeroDivisionError: x",
        None,
    ]
    assert looks.num_done == 2
    assert next(iter(looks.failures.collect())).samples[0].value == 2.0


def test_what_is_fatal_ends_the_loop() -> None:
    with pytest.raises(InvalidSettings):
        Looks(InvalidSettings("a sentinel is refused"), None).run()


def test_a_fault_while_it_is_told_to_stop_is_none() -> None:
    looks = Looks(Unavailable("closed"))
    looks.run()
    assert Operations().problems() == {}


def test_a_loop_without_a_counter_goes_on_as_well() -> None:
    looks = Looks(Unavailable("no database"), None)
    looks.loop = looks.loop._replace(failures=None)
    looks.run()
    assert looks.num_done == 1


def test_they_end_with_the_main_loop() -> None:
    stop, ended = threading.Event(), list[str]()
    companions = Companions(stop)

    def wait(stop: threading.Event) -> None:
        stop.wait(60.0)
        ended.append(threading.current_thread().name)

    companions.start("one", wait)
    companions.start("two", wait)
    companions.join()
    assert sorted(ended) == ["one", "two"]
    assert stop.is_set()


def test_one_that_dies_stops_the_main_loop_and_its_error_is_raised_there() -> None:
    stop = threading.Event()
    companions = Companions(stop)

    def die(_: threading.Event) -> None:
        raise MemoryError("a companion")

    companions.start("dead", die)
    companions.start("other", lambda stop: None if stop.wait(60.0) else pytest.fail("was not told"))
    assert stop.wait(60.0)
    with pytest.raises(MemoryError, match="a companion"):
        companions.join()
