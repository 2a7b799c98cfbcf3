"""docs/settings.md and docs/watching.md say what the code says; the four pages for operators stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtime.settings import Section
from tests.upkeep.manual_pages import PARTS, ROOT, SECTIONS, written
from tests.yaml_files import read_yaml

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("operating", "watching", "repair", "settings")]
MOST_WORDS = 13_000
RULES = read_yaml(ROOT / "deploy" / "alerts.yml")["groups"][0]["rules"]


@pytest.mark.parametrize("part", PARTS)
def test_a_page_is_as_the_code_has_it(part: str) -> None:
    page, _ = PARTS[part]
    assert page.read_text() == written(part), "run `python -m tests.upkeep.manual_pages` and commit the page"


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=SECTIONS)
def test_every_setting_has_a_meaning(kind: type[Section]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


def test_every_alarm_says_what_to_do_in_words_that_need_no_template() -> None:
    for rule in RULES:
        assert rule["annotations"].keys() <= {"summary", "description", "runbook"}, rule["alert"]
        assert len(rule["annotations"]["description"].split()) > 5, rule["alert"]
        assert "{{" not in rule["annotations"]["description"], rule["alert"]


def test_a_runbook_is_a_section_of_a_page() -> None:
    for rule in RULES:
        path, _, anchor = rule["annotations"].get("runbook", "docs/watching.md#alarms").partition("#")
        titles = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, rule["alert"]


def test_a_page_without_its_comments_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Settings\n")
    monkeypatch.setitem(PARTS, "settings", (page, PARTS["settings"][1]))
    with pytest.raises(ValueError, match=r"page\.md"):
        written("settings")


def test_the_pages_for_operators_are_short() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) <= MOST_WORDS
