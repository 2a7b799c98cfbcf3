from __future__ import annotations

from pathlib import Path

import pytest

from tests.lines import LineCount, count_folder, count_lines, product_folders, table

MODULE = '''"""A module.

Of several lines.
"""

# A comment.
LIMIT = 3  # beside code
"""What it is."""
TEXT = """
one

two"""


def double(number: int) -> int:
    """Twice it."""
    return (
        # inside
        number
        * 2
    )
'''


@pytest.mark.parametrize(
    ("text", "lines", "code"),
    [
        ("", 0, 0),
        ("x = 1\n", 1, 1),
        ("x = 1\n\n\n# y\n", 4, 1),
        ('"""Only words."""\n', 1, 0),
        ('def f(): "words"\n', 1, 1),
        ('x = ("a"\n     "b")\n', 2, 2),
        ('"a"\n"b"\nx = 1\n', 3, 1),
        ("x = 1 + \\\n    2\n", 2, 2),
        (MODULE, 21, 10),
    ],
)
def test_code_is_what_is_neither_comment_nor_docstring(text: str, lines: int, code: int) -> None:
    assert count_lines(text) == LineCount(lines, code)


def test_a_folder_counts_what_is_below_it_and_the_table_sums(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one.py").write_text("x = 1\n# y\n")
    (tmp_path / "a" / "b" / "two.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "a" / "notes.txt").write_text("x\n" * 9)
    assert count_folder(tmp_path / "a") == LineCount(4, 3)
    last = table([("a", LineCount(4, 3)), ("c", LineCount(1000, 1))]).splitlines()[-1]
    assert last.split() == ["all", "1,004", "4"]


def test_the_product_is_what_the_wheel_holds_and_each_process_is_a_row(tmp_path: Path) -> None:
    for name in ("contracts", "services/inference", "services/data", "examples"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "services" / "inference" / "__init__.py").touch()
    (tmp_path / "services" / "http.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.setuptools.packages.find]\ninclude = ["services*", "examples*", "contracts*"]\n'
    )
    found = [path.relative_to(tmp_path).as_posix() for path in product_folders(tmp_path)]
    assert found == ["contracts", "services/http.py", "services/inference"]
