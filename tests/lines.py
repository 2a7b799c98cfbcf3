"""`python -m tests.lines [FOLDER ...]`: how long the product's Python is, by folder: all lines, and code without comments and docstrings.

In: folders, by default the product's, from pyproject.toml. Out: a table.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
_BESIDE = frozenset({"examples", "migrations"})
"""What the wheel holds, and is not counted."""
_OPENED = frozenset({"pipelines", "services"})
"""Folders of processes, each of which is a row."""
_NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
})  # fmt: skip

Place = tuple[int, int]


class LineCount(NamedTuple):
    """`code`: lines with something other than comments, docstrings, and strings that explain the field above them."""

    lines: int = 0
    code: int = 0

    def plus(self, other: LineCount) -> LineCount:
        """Both together."""
        return LineCount(self.lines + other.lines, self.code + other.code)


def count_lines(text: str) -> LineCount:
    """Count the lines of a module."""
    explained = list(_explanations(text))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_explanation = any(start <= token.start and token.end <= end for start, end in explained)
        if token.type not in _NO_CODE and not is_explanation:
            code.update(range(token.start[0], token.end[0] + 1))
    return LineCount(len(text.splitlines()), len(code))


def count_folder(folder: Path) -> LineCount:
    """The modules of a folder and of those below it."""
    found = LineCount()
    for path in sorted(folder.rglob("*.py")):
        found = found.plus(count_lines(path.read_text(encoding="utf-8")))
    return found


def product_folders(root: Path) -> list[Path]:
    """What is counted by default: the folders that the wheel holds, and each process by itself."""
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    names = sorted({pattern.removesuffix("*") for pattern in patterns} - _BESIDE)
    return [place for name in names for place in (sorted(_rooms(root / name)) if name in _OPENED else [root / name])]


def table(rows: Iterable[tuple[str, LineCount]]) -> str:
    """The rows and their sum, as text."""
    total, printed = LineCount(), [f"{'folder':<24}{'lines':>8}{'code':>8}"]
    for name, count in rows:
        total = total.plus(count)
        printed.append(f"{name:<24}{count.lines:>8,}{count.code:>8,}")
    return "\n".join([*printed, f"{'all':<24}{total.lines:>8,}{total.code:>8,}"])


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    folders = [Path(name).resolve() for name in arguments] or product_folders(ROOT)
    rows = [(str(place.relative_to(ROOT)), _counted(place)) for place in folders]
    sys.stdout.write(f"{table(rows)}\n")


def _counted(place: Path) -> LineCount:
    return count_folder(place) if place.is_dir() else count_lines(place.read_text(encoding="utf-8"))


def _rooms(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


def _explanations(text: str) -> Iterator[tuple[Place, Place]]:
    """Where the strings that are statements begin and end."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


if __name__ == "__main__":
    main(sys.argv[1:])
