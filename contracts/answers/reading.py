"""Makes the reader of one answer in the form of its family. Pure."""

from __future__ import annotations

from typing import Protocol

from contracts.answers.channels import ChannelReader
from contracts.answers.parts import Output, Sink
from contracts.answers.reader import TextReader, Trigger
from contracts.answers.registry import BARE_MARKERS, Family


class AnswerReader(Protocol):
    """Gets an answer in pieces, with markers as single characters; its `Output` takes what became final."""

    def feed(self, text: str) -> None:
        """More text."""
        ...

    def end(self) -> None:
        """There is no more text."""
        ...


def reader_of(family: Family, output: Output, sink: Sink, *, in_reasoning: bool = False) -> AnswerReader:
    """A reader. If `sink` knows no tools, there are no calls. `in_reasoning`: the prompt has opened reasoning already."""
    if family.channels is not None:
        return ChannelReader(output, sink, family, family.channels)
    reasoning_end = family.marks[family.reasoning.closer] if family.reasoning is not None else ""
    return TextReader(output, sink, _triggers(family, bool(sink.schemas)), reasoning_end, in_reasoning=in_reasoning)


def _triggers(family: Family, calls: bool) -> list[Trigger]:
    marks, form, found = family.marks, family.form, list[Trigger]()
    if family.reasoning is not None:
        is_token = marks.is_token(family.reasoning.opener_marker)
        found.append(Trigger(marks.all(family.reasoning.opener), reasons=True, only_first=not is_token))
    if form is None or not calls:
        return found
    found += [Trigger(marks[text], form.reader(marks), only_first=form.is_bare) for text in form.openers]
    found += [Trigger(marks[text]) for text in form.dropped]
    if form.is_bare:
        found += [Trigger(marks[text], only_first=not marks.is_token(text)) for text in BARE_MARKERS]
    return found
