"""What a program has to do to pass: the inputs that it is run on, and what is expected of each. It stays on our side."""

from __future__ import annotations

import json
import marshal
from typing import Any, NamedTuple

_NUM_MEMBERS = 2


class ProgramTest(NamedTuple):
    """One run. `given` is the list of arguments of a call, or the standard input of a script."""

    given: Any
    expected: Any


class Suite(NamedTuple):
    """`function` is None for scripts. Held-out tests come last; they count like the others."""

    function: str | None
    tests: tuple[ProgramTest, ...]


def read_suite(reference: str) -> Suite:
    """The suite of `metadata.reference`.

    `{"function": NAME, "tests": [[input, expected], ...], "held_out": [...]}`: a list is the arguments, anything else
    is the only argument; so a function of one list has inputs like `[[1, 2, 3]]`.
    `{"stdin_tests": [[stdin, stdout], ...], "held_out": [...]}`: texts.

    Raises:
        ValueError: what is wrong with it; the app has to mend it.
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
        raise ValueError(f"metadata.reference has {sorted(unknown)}, which mean nothing here")
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
