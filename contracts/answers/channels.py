"""Reads answers that are several messages, each with a header: whom it is for, or in which channel. Pure.

    <|channel|>analysis<|message|>...<|end|>                                              gpt-oss: reasoning
    <|start|>assistant<|channel|>final<|message|>...<|return|>                            content
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant to=self<|message|>...<|eom|>                                       Muse: reasoning
    <|start|>assistant to=NAME<|message|><atem:function_calls>...<|eot|>

The prompt ends with the beginning of a header.
"""

from __future__ import annotations

import re
from typing import Literal

from contracts.answers.marks import Marks
from contracts.answers.parts import Output, Sink
from contracts.answers.reader import certain
from contracts.answers.registry import ChannelMarks, Family
from contracts.answers.source import CallText, NotACall, Reading, Result

_RECIPIENT = re.compile(r"\bto=(\S+)")
_CHANNEL = re.compile(r"\s*(\w+)")


class Wording:
    """The markers of such a family, as a parser searches for them."""

    def __init__(self, marks: Marks, channels: ChannelMarks) -> None:
        self.message = marks[channels.message]
        self.channel = marks[channels.channel] if channels.channel else ""
        starts = [marks[text] for text in channels.starts]
        self.ends = (*(marks[text] for text in channels.ends), *starts)
        self.borders = re.compile("|".join(map(re.escape, self.ends)))
        unmarked = (*starts, *(marks[text] for text in channels.other))
        self.unmarked = re.compile("|".join(map(re.escape, unmarked)) or r"(?!)")

    def words_of(self, header: str) -> str:
        """What a header says, without its markers and the role of its author."""
        said = self.unmarked.sub("", header)
        if self.channel:
            said = said.replace(self.channel, "")
        return said.strip().removeprefix("assistant").strip()


class ChannelReader:
    """See the module. The body of a call is JSON, unless the family has a form of its own."""

    def __init__(self, output: Output, sink: Sink, family: Family, channels: ChannelMarks) -> None:
        marks, form = family.marks, family.form
        self._output, self._sink, self._wording = output, sink, Wording(marks, channels)
        self._reader = form.reader(marks) if form is not None else None
        self._opener = marks[form.openers[0]] if form is not None else ""
        self._calls = bool(sink.schemas)
        self._held = ""
        self._in_header = True
        self._kind: Literal["content", "reasoning", "call"] = "content"
        self._name = ""
        self._header = ""
        self._is_shown = False

    def feed(self, text: str) -> None:
        """More text."""
        self._held += text
        self._go(ended=False)

    def end(self) -> None:
        """There is no more text."""
        self._go(ended=True)
        self._held = ""

    def _go(self, *, ended: bool) -> None:
        while self._held:
            if self._in_header:
                if not self._read_header(ended=ended):
                    return
            elif not self._read_body(ended=ended):
                return

    def _read_header(self, *, ended: bool) -> bool:
        header, found, rest = self._held.partition(self._wording.message)
        if not found:
            if ended and header.strip() and not self._wording.borders.fullmatch(header.strip()):
                self._output.say(self._wording.unmarked.sub("", header))
            return False
        self._held, self._header, self._in_header = rest, header, False
        self._kind = self._kind_of(self._wording.unmarked.sub(" ", header))
        self._output.trim()
        self._is_shown = False
        return True

    def _kind_of(self, header: str) -> Literal["content", "reasoning", "call"]:
        recipient = _RECIPIENT.search(header)
        name = recipient[1].partition(self._wording.channel or "\0")[0] if recipient else ""
        if name == "self":
            return "reasoning"
        if name and name not in ("user", "all"):
            self._name = name.removeprefix("functions.")
            return "call"
        place = header.find(self._wording.channel) if self._wording.channel else -1
        channel = _CHANNEL.match(header, place + len(self._wording.channel)) if place >= 0 else None
        return "reasoning" if channel and channel[1] == "analysis" else "content"

    def _read_body(self, *, ended: bool) -> bool:
        match = self._wording.borders.search(self._held)
        body = self._held if match is None else self._held[: match.start()]
        is_whole = match is not None or ended
        if self._kind == "call":
            if not is_whole:
                self._show_forced(body)
                return False
            self._take_call(body, is_cut=match is None)
            rest = ""
        else:
            shown = len(body) if is_whole and self._kind == "content" else certain(body, self._wording.ends)
            if is_whole and self._kind == "reasoning":
                shown = len(body.rstrip())
            (self._output.think if self._kind == "reasoning" else self._output.say)(body[:shown])
            rest = "" if is_whole else body[shown:]
        if match is None:
            self._held = rest
            return False
        self._held, self._in_header = self._held[match.end() :], True
        return True

    def _show_forced(self, body: str) -> None:
        """A forced call grows as it is written."""
        if not self._sink.is_forced or self._reader is not None or not self._calls or not body.strip():
            return
        if not self._is_shown:
            try:
                self._sink.start(self._name)
            except NotACall:
                return
            self._is_shown = True
        kept = body[: certain(body, self._wording.ends)]
        self._sink.arguments(kept.lstrip())
        self._output.call(self._sink.said)
        self._sink.said.clear()
        self._held = self._held[len(kept) :]

    def _take_call(self, body: str, *, is_cut: bool) -> None:
        if self._is_shown:
            self._show_forced(body)
            return
        self._sink.said.clear()
        try:
            self._read_call(body, is_cut=is_cut)
            self._sink.check()
        except NotACall as error:
            self._sink.said.clear()
            self._output.broken(error)
            header = self._wording.words_of(self._header)
            self._output.say(f"{header} {body}" if header else body)
            return
        self._output.call(self._sink.said)
        self._sink.said.clear()
        self._output.trim()

    def _read_call(self, body: str, *, is_cut: bool) -> None:
        if not self._calls or (is_cut and self._reader is None and not body.rstrip().endswith("}")):
            raise NotACall("the answer ends inside of it" if self._calls else "no tools are offered")
        source = CallText(body)
        source.ended = True
        if self._reader is not None:
            _run(source.literal(self._opener))
            _run(self._reader(source, self._sink))
        else:
            self._sink.start(self._name)
            _run(source.space())
            _run(self._sink.read_object(source))
        if source.text[source.place :].strip():
            raise NotACall("text follows its arguments")


def _run(reading: Reading[Result]) -> Result:
    try:
        while True:
            next(reading)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return] # StopIteration is untyped
