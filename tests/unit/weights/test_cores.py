from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from weights.cores import SMALL_BYTES, each, limited_to, num_cores

HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", HERE),
        ("50000 100000\n", 1),
        ("100000 100000\n", 1),
        (f"{HERE}50000 100000\n", HERE),
        ("nonsense", HERE),
    ],
)
def test_a_containers_limit_counts_in_whole_cores(tmp_path: Path, text: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert num_cores(tmp_path / "cpu.max") == expected


def test_without_a_limit_all_are_ours(tmp_path: Path) -> None:
    assert num_cores(tmp_path / "none") == HERE


def test_results_are_in_order_whoever_made_them_and_a_caller_inside_never_waits_for_itself() -> None:
    meeting = threading.Barrier(2, timeout=10)

    def work(number: int) -> list[int]:
        if number < 2:
            meeting.wait()  # two threads must be here
        return each(lambda inner: 10 * number + inner, range(3), [SMALL_BYTES] * 3)

    with limited_to(2):
        found = each(work, range(6), [SMALL_BYTES, SMALL_BYTES, 1, 1, 1, 1])
    assert found == [[10 * number + inner for inner in range(3)] for number in range(6)]


def test_the_largest_begins_and_little_work_stays_with_the_caller() -> None:
    seen: list[tuple[int, int]] = []

    def work(number: int) -> None:
        seen.append((number, threading.get_ident()))

    with limited_to(4):
        each(work, range(3), [5, 7, 6])
    with limited_to(1):
        each(work, range(3), [5, SMALL_BYTES, 6])
    assert seen == [(number, threading.get_ident()) for number in (0, 1, 2, 1, 2, 0)]


@pytest.mark.parametrize("threads", [1, 4])
def test_of_several_failures_the_one_of_the_largest_item_is_raised(threads: int) -> None:
    def work(number: int) -> None:
        if number % 2:
            raise ValueError(number)

    with limited_to(threads), pytest.raises(ValueError, match=r"^5$"):
        each(work, range(8), [SMALL_BYTES + (number in {4, 5}) for number in range(8)])
