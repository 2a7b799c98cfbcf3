"""A run with `-m` leaves out a file only where no test of it can be asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selection import is_left_out, share_of

_FAST = "not services and not slow"
_SLOW = "slow and not services"
_SOME = "import pytest\n\n@pytest.mark.slow\ndef test_a(): ...\n\ndef test_b(): ...\n"
_ALL = "import pytest\npytestmark = [pytest.mark.slow, pytest.mark.parametrize('a', [1])]\n\ndef test_a(a): ...\n"
_PARAMETER = "import pytest\nKINDS = [1, pytest.param(2, marks=pytest.mark.services)]\n"
_HELPED = "from tests.contract.conftest import KINDS\n"


@pytest.mark.parametrize(
    ("text", "expression", "is_out"),
    [
        ("def test_a(): ...\n", _FAST, False),
        ("def test_a(): ...\n", _SLOW, True),
        ("def test_a(): ...\n", "", False),
        (_SOME, _FAST, False),
        (_SOME, _SLOW, False),
        (_SOME, "slow and services", True),
        (_ALL, _FAST, True),
        (_ALL, _SLOW, False),
        (_PARAMETER, "services", False),
        (_HELPED, "services", False),
        (_HELPED, "gpu", True),
        ("import torch\n", "torch and not slow", False),
        ("from tests.unit.pipelines.training import builders\n", "torch", False),
        ("import json\n", "torch", True),
    ],
)
def test_a_file_is_left_out_where_none_of_its_marks_meet(
    tmp_path: Path, text: str, expression: str, is_out: bool
) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(text)
    assert is_left_out(file, expression) is is_out


def test_every_file_that_is_needed_has_one_worker_that_imports_it_first(tmp_path: Path) -> None:
    for name in ("a/test_1", "a/test_2", "a/test_3", "a/test_slow", "a/helper", "b/test_4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".py").write_text(_ALL if "slow" in name else "def test_a(): ...\n")
    option = SimpleNamespace(ignore=[str(tmp_path / "b")], markexpr=_FAST)
    config: Any = SimpleNamespace(args=[str(tmp_path)], option=option)
    shares = [[file.stem for file in share_of(config, number, 2)] for number in range(2)]
    assert sorted(shares) == [["test_1", "test_3"], ["test_2"]]
