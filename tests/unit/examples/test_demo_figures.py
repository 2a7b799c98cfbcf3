from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from examples.demo.curves import Bin
from examples.demo.figures import (
    DemoFigure,
    answers_until,
    broken_promises,
    exact_figure,
    median_figure,
    p_better,
    reached,
    share_figure,
    ungated,
    waits_for_gains,
)
from examples.demo.picture import draw_curves
from examples.demo.summary import row_of
from tests.each_case import each_case

WELL = {
    "failed_requests": 0,
    "ledger_balanced": True,
    "ungated": [],
    "ended": {},
    "unjudged": [],
    "versions_shipped": 5,
    "p_better": 1e-9,
}


@each_case(
    "change",
    [
        {"failed_requests": 1},
        {"ledger_balanced": False},
        {"ungated": [3]},
        {"ended": {"training": [-11]}},
        {"unjudged": [4]},
        {"versions_shipped": 0},
        {"weights_exact": False},
        {"breaks_unexplained": 2},
        {"p_better": 0.03},
    ],
)
def test_each_promise_can_be_broken(change: dict[str, Any]) -> None:
    assert broken_promises(WELL, learns=True) == []
    assert len(broken_promises(WELL | change, learns=True)) == 1


def test_a_broken_promise_is_said_in_words() -> None:
    ended, ungated_too = WELL | {"ended": {"rewards": [-9, 1]}}, WELL | {"ungated": [3, 4]}
    assert broken_promises(ended, learns=True) == [
        "processes ended by themselves: rewards with status -9, rewards with status 1"
    ]
    assert broken_promises(ungated_too, learns=True) == [
        "versions answered users before the gate had accepted them: 3, 4"
    ]


def test_a_run_of_half_a_minute_need_not_learn() -> None:
    assert broken_promises(WELL | {"p_better": 1.0}, learns=False) == []


def test_a_figure_is_missed_only_if_its_whole_interval_misses() -> None:
    assert share_figure("a", 0.95, 350, 0.94).verdict == "met"
    assert share_figure("a", 0.92, 350, 0.94).verdict == "within", "up to .944"
    assert share_figure("a", 0.90, 350, 0.94).verdict == "missed"
    assert share_figure("a", None, 0, 0.94).verdict == "within", "nothing is known"
    assert exact_figure("s", 301.0, 300.0).verdict == "missed"
    assert exact_figure("v", 5, 5, at_least=True).verdict == "met"
    assert DemoFigure("a", 100.0, 80.0, None, 90.0).verdict == "within"
    assert DemoFigure("a", None, None, None, 90.0).verdict == "missed"
    assert row_of(DemoFigure("a", 1713.0, 1400.0, None, 1500, unit="answers"))[1:4] == (
        "1,713", "1,400 to never", "≤ 1,500",
    )  # fmt: skip
    assert row_of(share_figure("a", 0.95, 350, 0.94))[1:4] == ("95.0%", "92.2% to 96.8%", "≥ 94.0%")


def test_a_share_is_reached_between_the_moments_at_which_its_interval_says_so() -> None:
    curve = [Bin(15.0, 100, 0.6, None), Bin(30.0, 100, 0.80, 0.5), Bin(45.0, 100, 0.86, 0.9), Bin(60.0, 100, 0.95, 0.9)]
    assert reached(curve, 0.85) == (45.0, 15.0, 60.0)
    assert reached(curve[:1], 0.85) == (None, None, None)
    clients = [{"kind": "signal", "at": 10.0}, *({"kind": "generation", "at": float(at)} for at in range(8, 20))]
    assert answers_until(clients, 5.0) == 7
    assert answers_until(clients, None) is None
    drawn = ET.fromstring(draw_curves(curve, "a < b", 0.85))  # noqa: S314 our own
    assert [len(line.attrib["points"].split()) for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")] == [
        2,
        3,
        4,
    ]


def answer(at: float, version: int | None) -> dict[str, Any]:
    return {"kind": "generation", "at": at, "version": version}


def test_a_gain_is_felt_once_half_of_the_answers_are_as_good() -> None:
    verdicts = [(0, 0.0, 0.5), (1, 10.0, 0.7), (2, 20.0, 0.705), (3, 100.0, 0.9), (4, 300.0, 0.95)]
    clients = [answer(10.0 + second, 2 if second % 2 else 0) for second in range(1, 80)]
    clients += [answer(100.0 + second, 3 if second > 30 else 2) for second in range(100)]
    clients += [answer(301.0, 4)]
    # v1 by v2, which is as good; v2 is no gain; v3; nobody was there for v4.
    assert waits_for_gains(clients, verdicts)[0] == 20.0
    assert waits_for_gains(clients, verdicts)[1] == 40.0
    assert len(waits_for_gains(clients, verdicts)) == 2
    assert waits_for_gains([answer(11.0 + second, 7) for second in range(60)], verdicts) == [60.0]


def test_the_median_has_the_interval_of_its_order_statistics() -> None:
    figure = median_figure("m", [float(value) for value in range(1, 11)], 4.0, "s")
    assert (figure.value, figure.low, figure.high) == (5.0, 2.0, 9.0), "97.9% for ten values"
    assert figure.verdict == "within"
    few = median_figure("m", [9.0, 8.0, 7.0], 4.0, "s")
    assert (few.value, few.low, few.high, few.verdict) == (8.0, 7.0, 9.0, "missed")
    assert median_figure("m", [], 4.0, "s").verdict == "missed"


def test_better_is_tested_on_the_cases_that_changed() -> None:
    assert p_better([False] * 6 + [True] * 4, [True] * 10) == 1 / 64
    assert p_better([True, False], [False, True]) == 0.75
    assert p_better([True], [True]) == 1.0


def test_an_answer_before_the_verdict_is_ungated() -> None:
    verdicts = [(1, 10.0, 0.7)]
    clients = [answer(9.0, 0), answer(10.0, 1), answer(11.0, None)]
    assert ungated(clients, verdicts) == []
    assert ungated([*clients, answer(9.9, 1), answer(50.0, 2)], verdicts) == [1, 2]
