"""Compares two JSON values, types included: true is not 1, and 1 is not 1.0. A tuple comes back as a list."""

from __future__ import annotations

import math
from typing import Any


def same(expected: Any, given: Any, tolerance: float = 0.0) -> bool:
    """Whether `given` equals `expected`. Two floats may differ by `tolerance`, relative or absolute.

    It recurses only as deep as `expected`, which the app wrote.
    """
    if type(expected) is not type(given):
        return False
    if isinstance(expected, list):
        return len(expected) == len(given) and all(
            same(one, other, tolerance) for one, other in zip(expected, given, strict=True)
        )
    if isinstance(expected, dict):
        return expected.keys() == given.keys() and all(same(expected[key], given[key], tolerance) for key in expected)
    if isinstance(expected, float):
        return math.isclose(expected, given, rel_tol=tolerance, abs_tol=tolerance)
    return bool(expected == given)


def same_text(expected: str, given: str) -> bool:
    """Whether two outputs are equal line by line; white space at the end of lines and of the whole does not count."""
    return _lines(expected) == _lines(given)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
