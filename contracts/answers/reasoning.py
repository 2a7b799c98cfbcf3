"""How families mark reasoning, and an answer's text without it. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple


class ReasoningMarks(NamedTuple):
    """What opens and closes reasoning. `opener` begins with the marker `opener_marker`; more text may follow."""

    opener: str
    closer: str
    opener_marker: str


REASONING = (
    ReasoningMarks("<think>", "</think>", "<think>"),
    ReasoningMarks("[THINK]", "[/THINK]", "[THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", "<|START_THINKING|>"),
    ReasoningMarks("<|channel>thought\n", "<channel|>", "<|channel>"),
    ReasoningMarks("<seed:think>", "</seed:think>", "<seed:think>"),
)
"""The first pair that a template names is its own."""

_TEXT_MARKS = {
    **{marks.opener_marker.lower(): marks.closer.lower() for marks in REASONING},
    "<thinking>": "</thinking>",
    "<reasoning>": "</reasoning>",
    "<thought>": "</thought>",
}
_OPENER = re.compile(rf"\s*({'|'.join(map(re.escape, _TEXT_MARKS))})", re.IGNORECASE)
_CLOSERS = {closer: re.compile(re.escape(closer), re.IGNORECASE) for closer in _TEXT_MARKS.values()}
_LONE = "|".join(map(re.escape, _CLOSERS))
_LONE_CLOSER = re.compile(rf"(?:^[ \t]*(?:{_LONE})|(?:{_LONE})[ \t]*$)", re.IGNORECASE | re.MULTILINE)
_ANALYSIS = re.compile(r"\s*(?:<\|start\|>assistant)?<\|channel\|>analysis[^<]{0,64}<\|message\|>")
_MESSAGE_END = re.compile(r"<\|end\|>|(?=<\|start\|>)")
_FINAL = re.compile(r"\s*(?:<\|start\|>assistant)?<\|channel\|>final[^<]{0,64}<\|message\|>")
_FINAL_END = re.compile(r"<\|(?:return|end)\|>\s*\Z")


def reasoning_of(source: str) -> ReasoningMarks | None:
    """The marks of a template; None if it has none."""
    return next((marks for marks in REASONING if marks.opener_marker in source and marks.closer in source), None)


def without_reasoning(text: str) -> str | None:
    """An answer without the reasoning before it; None if that is never closed. The time is linear in the text.

    Reasoning is what stands first: blocks in any family's marks, or everything before a closing mark at the beginning or end of a
    line, because some templates write the opening one into the prompt. Of gpt-oss's messages, the final one is left, or its calls.
    """
    place = _past_blocks(text)
    if place is None:
        return None
    if place == 0 and (lone := _LONE_CLOSER.search(text)) is not None:
        place = lone.end()
    if (final := _FINAL.match(text, place)) is not None:
        return _FINAL_END.sub("", text[final.end() :])
    return text[place:]


def _past_blocks(text: str) -> int | None:
    place = 0
    while True:
        if (opened := _OPENER.match(text, place)) is not None:
            closed = _CLOSERS[_TEXT_MARKS[opened[1].lower()]].search(text, opened.end())
        elif (opened := _ANALYSIS.match(text, place)) is not None:
            closed = _MESSAGE_END.search(text, opened.end())
        else:
            return place
        if closed is None:
            return None
        place = closed.end()
