from __future__ import annotations

import os
from pathlib import Path

import pytest

from rewards.killable.cores import num_cores

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
