"""The worst phrases stay out; `tests/plain_english.py` has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plain_english import ROOTS, files_below, hard_phrases

ROOT = Path(__file__).parent.parent.parent


def test_every_page_docstring_comment_and_message_is_free_of_them() -> None:
    files = files_below([ROOT / name for name in ROOTS])
    assert [f"{file.relative_to(ROOT)}:{line}: {phrase}" for file in files for line, phrase in hard_phrases(file)] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "A pointer, for who cannot reach the database.",
        "A file that is none is refused.",
        "A correction is such a one.",
        "The places of what changed.",
        "What is no path may be a secret.",
        "A tokenizer that is nobody's.",
        "So long a text that its tokens need no counting.",
        "Names those that waited in vain.",
        "Homes of before must begin anew.",
        "The bridge, whose format it is.",
    ],
)
def test_a_riddle_is_found_in_comments_docstrings_messages_and_pages(sentence: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nOne line.\n{sentence}\n")
    assert [line for line, _ in hard_phrases(page)] == [4]
    for text in (f'"""Ours.\n\n{sentence}\n"""\n', f"x = 1\n\n# {sentence}\n", f"x = 1\ny = 2\nz = '{sentence}'\n"):
        code = tmp_path / "code.py"
        code.write_text(text)
        assert [line for line, _ in hard_phrases(code)] == [3]


def test_a_phrase_that_is_broken_over_two_lines_is_found(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text('"""A pointer for\nwho cannot reach the database."""\n')
    assert len(list(hard_phrases(code))) == 1


def test_code_blocks_of_a_page_are_not_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\nfor who\n```\n")
    assert list(hard_phrases(page)) == []
