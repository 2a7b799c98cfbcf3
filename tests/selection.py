"""Which files of tests a run with `-m` cannot need: they are not imported, which takes a process 20 seconds for all of them.

A test's marks are in its file, in a `conftest.py` above it, or in a helper that these import; `torch` is set by what it imports.
A file is left out only if no choice among these marks, with those that `pytestmark` gives to the whole file, meets the expression.

All workers import all files. In a new checkout pytest rewrites the assertions of each first, and keeps what it made: so each worker imports
a share of its own before the others'.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.torch_marker import files_behind, touches_torch

_MARK = re.compile(r"\bmark\.(\w+)")
_OF_ALL = re.compile(r"^pytestmark = (.*)$", re.MULTILINE)
_BUILT_IN = frozenset({"parametrize", "skip", "skipif", "usefixtures", "filterwarnings", "xfail", "asyncio"})


def is_left_out(path: Path, expression: str) -> bool:
    """Whether no test of this file can meet the expression of `-m`."""
    if not expression or not path.name.startswith("test_"):
        return False
    possible = frozenset[str]().union(*map(_marks_in, files_behind(path)))
    always = frozenset(_MARK.findall(" ".join(_OF_ALL.findall(path.read_text())))) - _BUILT_IN
    always |= {"torch"} if touches_torch(path) else frozenset()
    return not _is_met(expression, always, possible - always)


def share_of(config: pytest.Config, number: int, count: int) -> list[Path]:
    """Every `count`-th file of tests that the run may need, from the one with this number on."""
    ignored = [Path(folder).absolute() for folder in config.option.ignore or ()]
    files = [file.absolute() for place in config.args for file in sorted(Path(place).rglob("test_*.py"))]
    wanted = [file for file in files if not any(file.is_relative_to(folder) for folder in ignored)]
    return [file for file in wanted[number::count] if not is_left_out(file, config.option.markexpr)]


@cache
def _marks_in(file: Path) -> frozenset[str]:
    return frozenset(_MARK.findall(file.read_text())) - _BUILT_IN


@cache
def _is_met(expression: str, always: frozenset[str], possible: frozenset[str]) -> bool:
    compiled = Expression.compile(expression)
    return any(compiled.evaluate(_is_in({*always, *more})) for more in _subsets(possible))


def _is_in(marks: set[str]) -> Callable[..., bool]:
    return lambda name, /, **_: name in marks


def _subsets(marks: Iterable[str]) -> Iterable[tuple[str, ...]]:
    known = sorted(marks)
    return itertools.chain.from_iterable(itertools.combinations(known, size) for size in range(len(known) + 1))
