"""The tests of a program: its inputs, the expected values, and their comparison. The program never sees the expected values."""

from __future__ import annotations

import json
import marshal
import math
from typing import Any, NamedTuple

_NUM_MEMBERS = 2


class ProgramTest(NamedTuple):
    """One run. `given` is the list of arguments of a call, or the standard input of a script."""

    given: Any
    expected: Any


class Suite(NamedTuple):
    """All tests of a program. `function` is None for scripts. Held-out tests come last and count like the others."""

    function: str | None
    tests: tuple[ProgramTest, ...]


def read_suite(reference: str) -> Suite:
    """The suite of `metadata.reference`.

    `{"function": NAME, "tests": [[input, expected], ...], "held_out": [...]}`: an input that is a list holds the arguments, any
    other input is the only argument; so a function of one list has inputs like `[[1, 2, 3]]`.
    `{"stdin_tests": [[stdin, stdout], ...], "held_out": [...]}`: texts.

    Raises:
        ValueError: the reference is invalid; the message says what the app must correct.
    """
    try:
        found = json.loads(reference, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"metadata.reference is not JSON: {error}") from error
    try:
        marshal.dumps(found)
    except ValueError as error:
        raise ValueError("metadata.reference is nested too deeply") from error
    if not isinstance(found, dict) or ("function" in found) == ("stdin_tests" in found):
        raise ValueError('metadata.reference needs "function" with "tests", or "stdin_tests"')
    visible = "tests" if "function" in found else "stdin_tests"
    if unknown := found.keys() - {"function", visible, "held_out"}:
        raise ValueError(f"metadata.reference has {sorted(unknown)}, which are unknown; remove them")
    function = found.get("function")
    if function is not None and not (isinstance(function, str) and function.isidentifier()):
        raise ValueError(f"metadata.reference.function is {function!r}, not a name")
    if "function" in found and function is None:
        raise ValueError("metadata.reference.function is null, not a name")
    tests = [
        _test(name, index, pair, function is None)
        for name in (visible, "held_out")
        for index, pair in enumerate(_pairs(found, name))
    ]
    if not tests:
        raise ValueError("metadata.reference has no tests")
    return Suite(function, tuple(tests))


def _pairs(found: dict[str, Any], name: str) -> list[Any]:
    pairs = found.get(name, [])
    if not isinstance(pairs, list):
        raise ValueError(f"metadata.reference.{name} is not a list")  # noqa: TRY004 as for all that is wrong with it
    return pairs


def _test(name: str, index: int, pair: Any, is_script: bool) -> ProgramTest:
    if not isinstance(pair, list) or len(pair) != _NUM_MEMBERS:
        raise ValueError(f"metadata.reference.{name}[{index}] is not a pair of input and expected")
    given, expected = pair
    if is_script:
        if not isinstance(given, str) or not isinstance(expected, str):
            raise ValueError(f"metadata.reference.{name}[{index}] is not a pair of texts")
        return ProgramTest(given, expected)
    return ProgramTest(given if isinstance(given, list) else [given], expected)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def same(expected: Any, given: Any, tolerance: float = 0.0) -> bool:
    """Whether two JSON values are equal, types included: true is not 1, and 1 is not 1.0. A tuple comes back as a list.

    Two floats may differ by `tolerance`, relative or absolute.
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
