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


def touches_torch(path: Path) -> bool:
    """Whether a file of tests imports torch, or what loads it; so does one below a conftest.py that does."""
    above = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(_ROOT / "tests")]
    return any(_loads_torch(file) for file in [path, *above])


@cache
def _loads_torch(path: Path) -> bool:
    waiting, seen = [path], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for source, names, module in _IMPORT.findall(file.read_text()):
            name = source or module
            if _TORCH.match(name):
                return True
            if name.split(".")[0] in _HELPERS:
                folder = _ROOT.joinpath(*name.split("."))
                waiting += [folder.with_suffix(".py"), *(folder / f"{part.strip()}.py" for part in names.split(","))]
    return False
