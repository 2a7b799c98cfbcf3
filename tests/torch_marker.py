"""Which test modules touch torch: found by what they import, so that no list is forgotten when a test is added.

Only three places of the product may load torch (tests/unit/test_architecture.py); a test that imports one of them,
itself, through a helper or in a `conftest.py` above it, computes with torch. Tests that start processes do not count.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_TORCH = re.compile(r"(torch|transformers|trl|accelerate|policy|services\.engine|pipelines\.training)(\.|$)")
_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import ([\w, ]*)|import ([\w.]+))", re.MULTILINE)
_HELPERS = ("tests", "benchmarks", "examples")


@cache
def touches_torch(path: Path) -> bool:
    """Whether a file of tests imports torch, or what loads it; so does one below a conftest.py that does."""
    return any(_TORCH.match(name) for file in files_behind(path) for name in _imported(file)[0])


@cache
def files_behind(path: Path) -> tuple[Path, ...]:
    """A file of tests, each conftest.py above it, and what these import of `tests`, `benchmarks` and `examples`; itself first."""
    waiting, found = (
        [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(_ROOT / "tests")],
        [path],
    )
    waiting += _imported(path)[1]
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.append(file)
            waiting += _imported(file)[1]
    return tuple(found)


@cache
def _imported(file: Path) -> tuple[list[str], list[Path]]:
    """Names of modules, and the files among them that may be helpers."""
    names, files = [], []
    for source, parts, module in _IMPORT.findall(file.read_text()):
        names.append(source or module)
        if names[-1].split(".")[0] in _HELPERS:
            folder = _ROOT.joinpath(*names[-1].split("."))
            files += [folder.with_suffix(".py"), *(folder / f"{part.strip()}.py" for part in parts.split(","))]
    return names, files
