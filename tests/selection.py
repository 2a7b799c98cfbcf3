"""Which files of tests a run with `-m` cannot need: they are not imported, which takes a process 20 seconds for all of them.

A test's marks are in its file, in a `conftest.py` above it, or in a helper that these import; `torch` is set by what it imports.
A file is left out only if no choice among these marks, with those that `pytestmark` gives to the whole file, meets the expression.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from _pytest.mark.expression import Expression

from tests.torch_marker import files_behind, touches_torch

_MARK = re.compile(r"\bmark\.(\w+)")
_OF_ALL = re.compile(r"^pytestmark = (.*)$", re.MULTILINE)
_BUILT_IN = frozenset({"parametrize", "skip", "skipif", "usefixtures", "filterwarnings", "xfail", "asyncio"})


def is_left_out(path: Path, expression: str) -> bool:
    """Whether no test of this file can meet the expression of `-m`."""
    if not expression or not path.name.startswith("test_"):
        return False
    texts = [file.read_text() for file in files_behind(path)]
    possible = set().union(*(_MARK.findall(text) for text in texts)) - _BUILT_IN
    always = set(_MARK.findall(" ".join(_OF_ALL.findall(texts[0])))) - _BUILT_IN
    always |= {"torch"} if touches_torch(path) else set()
    compiled = Expression.compile(expression)
    return not any(compiled.evaluate(_is_in({*always, *more})) for more in _subsets(possible - always))


def _is_in(marks: set[str]) -> Callable[..., bool]:
    return lambda name, /, **_: name in marks


def _subsets(marks: set[str]) -> Iterable[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(marks, size) for size in range(len(marks) + 1))
