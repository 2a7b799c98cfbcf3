"""Threads beside the main loop: they end with it, and what one cannot survive ends the process."""

from __future__ import annotations

import threading

import pytest

from pipelines.release.companions import Companions


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
