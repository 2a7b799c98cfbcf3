"""With `--dist loadfile`, folders of shared servers stay with one worker, and what takes longest begins first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]

from tests.each_case import each_case
from tests.scheduling import LONGEST, LongestFirst

_ROOT = Path(__file__).parent.parent.parent
_FAULTS, _REGIONS = LONGEST[0], LONGEST[1]
_TESTS = [
    *(f"tests/contract/test_a.py::test_{number}" for number in range(5)),
    f"{_FAULTS}test_broker.py::test_a",
    f"{_FAULTS}test_topics.py::test_b[1]",
    f"{_FAULTS}test_topics.py::test_c",
    f"{_REGIONS}::test_d",
]


class NotedWorker:
    """Notes the tests that it is given."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[str] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [_TESTS[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler_of(config: pytest.Config, dist: str) -> Any:
    """What xdist is given for two workers."""
    option = SimpleNamespace(loadscopereorder=True, dist=dist)
    stub = SimpleNamespace(getvalue=lambda _name: ["2*popen"], option=option)
    return config.hook.pytest_xdist_make_scheduler(config=stub, log=Producer("test"))


def test_what_takes_longest_begins_first_and_stays_together(pytestconfig: pytest.Config) -> None:
    scheduler, workers = scheduler_of(pytestconfig, "loadfile"), [NotedWorker(), NotedWorker()]
    assert isinstance(scheduler, LongestFirst)
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, _TESTS)
    scheduler.schedule()
    assert workers[0].given == _TESTS[5:8]
    assert workers[1].given == [_TESTS[8], *_TESTS[:5]]


def test_other_ways_to_share_tests_are_as_xdist_has_them(pytestconfig: pytest.Config) -> None:
    assert not isinstance(scheduler_of(pytestconfig, "worksteal"), LongestFirst)


@each_case("place", LONGEST)
def test_whatever_is_named_is_there(place: str) -> None:
    assert (_ROOT / place).is_dir() if place.endswith("/") else (_ROOT / place).is_file()
