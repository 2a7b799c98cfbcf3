"""A run with `-m` leaves out a file only where no test of it can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selection import is_left_out

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
