"""Numbers that may only fall: modules of a crowded folder, and private names of other packages that a test file reaches.

`python -m tests.upkeep.ceilings` writes `tests/upkeep/ceilings.toml` lower, after something fell, moved or went; it refuses to write a number higher.
A folder that is not listed has at most 25 Python modules, a test file that is not listed reaches no private name. Migrations are a history, which
only grows: they are not counted.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
LISTED = Path(__file__).parent / "ceilings.toml"
FOLDERS = (
    "benchmarks", "commands", "contracts", "deploy", "docs", "engines", "examples", "pipelines", "policy", "rewards", "runtime",
    "services", "tests", "weights",
)  # fmt: skip
MOST_MODULES = 25
REFRESH = "`python -m tests.upkeep.ceilings` writes the list lower"
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_mapping", "_replace", "_request_id", "_typeshed"}
"""Documented, in spite of their underscore: of named tuples, os, rows of SQLAlchemy, answers of SDKs, type stubs."""

Numbers = Mapping[str, int]


class Ceilings(NamedTuple):
    """The two lists of `tests/upkeep/ceilings.toml`."""

    modules: Numbers
    """Python files of a folder, if more than `MOST_MODULES`."""
    private: Numbers
    """Private names of other packages that a file below tests/ reaches, if any."""


def counted(root: Path = ROOT) -> Ceilings:
    """What the tree has now."""
    folders: dict[str, int] = {}
    for top in FOLDERS:
        for path in (root / top).rglob("*.py"):
            name = path.parent.relative_to(root).as_posix()
            if name == "migrations/versions":  # a history, of which nobody surveys the whole
                continue
            folders[name] = folders.get(name, 0) + 1
    tests = {path.relative_to(root).as_posix(): path for path in (root / "tests").rglob("*.py")}
    private = {name: len(list(reached(path.read_text()))) for name, path in tests.items()}
    return Ceilings(
        {name: count for name, count in sorted(folders.items()) if count > MOST_MODULES},
        {name: count for name, count in sorted(private.items()) if count},
    )


def listed(path: Path = LISTED) -> Ceilings:
    """What was committed."""
    found = tomllib.loads(path.read_text())
    return Ceilings(found["modules"], found["private"])


def reached(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each private name of another package in a file: imports, attributes, and strings given to setattr or getattr."""
    tree = ast.parse(text)
    own = set(_defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if not module.startswith("tests"):
                yield from ((node.lineno, name) for name in _imported(node, module) if _is_private(name))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _called(node) in {"setattr", "getattr", "delattr", "hasattr"}:
            strings = [given.value for given in node.args[:2] if isinstance(given, ast.Constant)]
            for name in (str(value).rpartition(".")[2] for value in strings):
                if _is_private(name) and name not in own:
                    yield node.lineno, name


def grown(was: Numbers, now: Numbers) -> dict[str, tuple[int, int]]:
    """Names whose number rose, with both. A new name may take along what others lost, as after a move."""
    rose = {name: (was[name], count) for name, count in now.items() if name in was and count > was[name]}
    new = {name: (0, count) for name, count in now.items() if name not in was}
    return rose | (new if sum(now.values()) > sum(was.values()) else {})


def written(ceilings: Ceilings) -> str:
    """The text of the list."""
    parts = [f"# Numbers that may only fall; {REFRESH}."]
    for name, numbers in ceilings._asdict().items():
        parts += ["", f"[{name}]", *(f'"{key}" = {count}' for key, count in numbers.items())]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write the list lower. Status 1, and nothing is written, if a number would rise."""
    was, now = listed(), counted()
    rose = {**grown(was.modules, now.modules), **grown(was.private, now.private)}
    for name, (before, after) in rose.items():
        sys.stderr.write(f"{name}: {after}, and it may have {before}\n")
    if not rose:
        LISTED.write_text(written(now))
    return 1 if rose else 0


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def _imported(node: ast.Import | ast.ImportFrom, module: str) -> Iterator[str]:
    yield from module.split(".")
    for alias in node.names:
        yield from alias.name.split(".")


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _defined(tree: ast.AST) -> Iterator[str]:
    """Private names that classes of the file itself have."""
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                    yield node.attr
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


if __name__ == "__main__":
    sys.exit(main())
