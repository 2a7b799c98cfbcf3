"""Checks of lists, sections, marks and JSON. Every pattern runs in time linear in the answer."""

from __future__ import annotations

import re

from pydantic import Field

from examples.verifiers.instructions.rule import Count, Instruction, counted, of_text
from rewards.verifiers.check import Answer
from rewards.verifiers.strict_json import NotJson, read_json, without_fence

_BULLET = re.compile(r"^[ \t]*[-*+\u2022\u2013][ \t][^\n]*?\w", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*[*_]{0,2}\d{1,3}[.)][*_]{0,2}[ \t][^\n]*?\w", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t][^\n]*?\w", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[([^\[\]\n]+)\](?!\()")
_HIGHLIGHT = re.compile(r"(?<![*\w])(\*{1,2})(?![\s*])([^*\n]+)(?<!\s)\1(?![*\w])")
_TITLE = re.compile(r"<<([^<>\n]+)>>")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)


class Sections(Count):
    """Sections whose first line is the mark and a number or letter."""

    mark: str = Field(default="Section", min_length=1)


def without_code(text: str) -> str:
    """Without fenced blocks, in which a comment looks like a heading."""
    return _CODE.sub("", text)


def num_bullets(text: str) -> int:
    """Lines that begin with -, *, +, a dash or a bullet, followed by a word."""
    return len(_BULLET.findall(without_code(text)))


def num_numbered(text: str) -> int:
    """Lines that begin with a number and a dot or parenthesis, followed by a word."""
    return len(_NUMBERED.findall(without_code(text)))


def num_headings(text: str) -> int:
    """Markdown headings."""
    return len(_HEADING.findall(without_code(text)))


def num_placeholders(text: str) -> int:
    """Different [placeholders], without links."""
    return len({inside for inside in _PLACEHOLDER.findall(text) if _has_word(inside)})


def num_highlights(text: str) -> int:
    """Different *highlighted* or **highlighted** parts that contain a word."""
    return len({inside for _, inside in _HIGHLIGHT.findall(text) if _has_word(inside)})


def num_sections(text: str, mark: str) -> int:
    """The number of different section headings."""
    found = re.findall(rf"^[ \t#*_]*{re.escape(mark)}[ \t]+(\d+|[A-Z]|[IVXLC]+)\b", text, re.MULTILINE | re.IGNORECASE)
    return len({number.upper() for number in found})


def _has_word(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


def _sections(answer: Answer, rule: Sections) -> str:
    return rule.problem(num_sections(answer.text, rule.mark), f"sections marked {rule.mark!r}")


def _title(text: str) -> str:
    return "" if any(_has_word(inside) for inside in _TITLE.findall(text)) else "it has no <<title>>"


def _json(text: str) -> str:
    """Must be an object or an array, bare or in one fence. Any quoted text is JSON too, so a string is refused."""
    try:
        value = read_json(without_fence(text))
    except NotJson as error:
        return f"not JSON: {error}"
    return "" if isinstance(value, dict | list) else "it is JSON, but neither an object nor an array"


def _no_fence(text: str) -> str:
    return "it has a code fence" if _FENCE.search(text) else ""


INSTRUCTIONS = {
    "bullets": counted(num_bullets, "bullets"),
    "numbered_items": counted(num_numbered, "numbered items"),
    "headings": counted(num_headings, "headings"),
    "sections": Instruction(Sections, _sections),
    "placeholders": counted(num_placeholders, "placeholders"),
    "highlights": counted(num_highlights, "highlights"),
    "title": of_text(_title),
    "json_format": of_text(_json),
    "no_code_fence": of_text(_no_fence),
}
