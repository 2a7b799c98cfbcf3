"""docs/security.md names a test for each threat: they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 50
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert missing == []


def test_every_entry_of_both_lists_has_a_line() -> None:
    for name in (*(f"API{number}" for number in range(1, 11)), *(f"LLM{number:02}" for number in range(1, 11))):
        assert re.search(rf"^\| {name}\b", PAGE, re.MULTILINE), name


def test_every_area_of_attacks_runs_in_a_test() -> None:
    areas = {path.stem for path in (ROOT / "tests" / "adversary" / "attacks").glob("[!_]*.py")} - {"attack"}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {
        area
        for area in areas
        if not re.search(rf"tests\.adversary\.attacks(?:\.{area}\b| import [^\n]*\b{area}\b)", tests)
    } == set()
