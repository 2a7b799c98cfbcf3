"""What the documents name exists: files, folders, pages, sections; and the front page stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOPS = "benchmarks|commands|contracts|deploy|engines|examples|migrations|pipelines|policy|rewards|runtime|services|tests|weights"
MOST_WORDS = 1500
MOST_FILES = 5


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    if page.parent.name == "decisions":  # they speak of their day
        return
    for name in re.findall(rf"`((?:{TOPS})/[\w./*-]+)`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), name


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS


def test_each_likely_change_needs_few_files() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## The ten most likely changes")[1].split("## Rules")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| Change", "|---"))]
    assert len(rows) == 10
    for row in rows:
        assert 1 <= len(set(re.findall(r"`[\w/*.]+(?:\.\w+|/)`", row))) <= MOST_FILES, row


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()
