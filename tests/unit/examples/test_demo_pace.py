from __future__ import annotations

import argparse
from pathlib import Path

from examples.demo.machine import MachineUse, tell_machine
from examples.demo.pace import (
    FULL_PACE,
    SLOWEST_PACE,
    DemoLoad,
    PaceMaker,
    sizes_on,
    tell_pace,
)
from examples.pace import add_pace_options, pace_of, write_pace


def test_users_begin_with_a_share_of_what_the_engine_gives() -> None:
    assert PaceMaker(60.0, 200).rate == 9.0
    assert PaceMaker(1000.0, 200).rate == FULL_PACE
    assert PaceMaker(1.0, 200).rate == SLOWEST_PACE


def test_the_pace_falls_while_something_is_behind_and_rises_while_nothing_is() -> None:
    pace = PaceMaker(160 / 3, 200)
    assert pace.look(DemoLoad(8.0, 0.5, 10.0)) == 8.5
    assert pace.look(DemoLoad(8.0, 3.0, 10.0)) == 6.375
    assert pace.look(DemoLoad(6.0, 1.0, 31.0)) == 4.78125
    assert pace.look(DemoLoad(4.5, 1.0, 31.0)) == SLOWEST_PACE
    assert pace.look(DemoLoad(2.0, 0.0, 0.0)) == SLOWEST_PACE, "users wait for their answers"
    assert pace.figures()["slowed_for"] == {"training": 1, "the gate": 2}
    assert "slowed down 1 times for training, 2 times for the gate" in tell_pace(pace.figures())


def test_a_slow_machine_has_longer_for_the_gate_and_one_core_makes_fewer_versions() -> None:
    assert PaceMaker(160 / 3, 200).look(DemoLoad(8.0, 0.0, 16.0)) == 6.0
    slow = PaceMaker(30.0, 200)
    assert slow.look(DemoLoad(4.5, 0.0, 26.0)) == 5.0
    assert slow.look(DemoLoad(5.0, 0.0, 27.0)) == SLOWEST_PACE
    assert sizes_on(1.8, 64, 200) == (64, 200)
    assert sizes_on(1.1, 64, 200) == (96, 120)
    assert sizes_on(1.1, 64, 100) == (96, 100)


def test_users_follow_the_file_and_leave_after_their_visits(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_pace_options(parser, 1.0)
    assert pace_of(parser.parse_args([])).seconds == 1.0
    assert pace_of(parser.parse_args([])).take()
    file = tmp_path / "pace"
    pace = pace_of(parser.parse_args(["--pace", "2", "--pace-file", str(file), "--visits", "2"]))
    assert pace.seconds == 2.0, "nobody has written it yet"
    write_pace(file, 0.25)
    assert pace.seconds == 0.25
    assert [pace.take(), pace.take(), pace.take()] == [True, True, False]


def test_the_machine_is_shared_between_the_demo_and_others() -> None:
    use = MachineUse()
    assert sum(number * number for number in range(400_000)) > 0
    figures = use.figures()
    assert 0.0 < use.cores_given() < figures["cores"] + 0.5
    assert figures["cores"] >= 1
    assert figures["demo_cores"] > 0
    assert f"{figures['cores']} cores" in tell_machine(figures)
