"""Which test modules touch torch: found by what they import, so that no list is forgotten when a test is added.

Only four places of the product may load torch (tests/unit/test_architecture.py); a test that imports one of them,
itself, through a helper or in a `conftest.py` above it, computes with torch. Tests that start processes do not count.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_TORCH = re.compile(
    r"(torch|transformers|trl|accelerate|policy|engines\.vllm\.server|services\.engine|pipelines\.training)(\.|$)"
)
_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import ([\w, ]*)|import ([\w.]+))", re.MULTILINE)
_HELPERS = ("tests", "benchmarks", "examples")


@cache
def touches_torch(path: Path) -> bool:
    """Whether a file of tests imports torch, or what loads it; so does one below a conftest.py that does."""
    return any(map(_names_torch, files_behind(path)))


@cache
def files_behind(path: Path) -> tuple[Path, ...]:
    """A file of tests, each conftest.py above it, and what these import of `tests`, `benchmarks` and `examples`; itself first."""
    waiting = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(_ROOT / "tests")]
    waiting = [file for file in waiting if file.is_file()] + _helpers_of(path)
    found = {path: None}
    while waiting:
        file = waiting.pop()
        if file not in found:
            found[file] = None
            waiting += _helpers_of(file)
    return tuple(found)


@cache
def _names_torch(file: Path) -> bool:
    return any(_TORCH.match(source or module) for source, _, module in _imports_of(file))


@cache
def _helpers_of(file: Path) -> list[Path]:
    """The helpers that a file imports: modules, or names in packages."""
    possible: dict[Path, None] = {}
    for source, parts, module in _imports_of(file):
        name = (source or module).split(".")
        if name[0] in _HELPERS:
            folder = _ROOT.joinpath(*name)
            possible |= dict.fromkeys([folder.with_suffix(".py")])
            possible |= dict.fromkeys(folder / f"{part.strip()}.py" for part in parts.split(","))
    return [helper for helper in possible if helper.is_file()]


@cache
def _imports_of(file: Path) -> list[tuple[str, str, str]]:
    return _IMPORT.findall(file.read_text())
