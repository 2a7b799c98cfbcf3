"""Reads an answer: content, reasoning and calls. Pure.

In: text in pieces, with markers as single characters (contracts/answers/marks.py). Out: what became final. Nothing is
taken back, and what comes out depends on the text only, never on where the pieces end.

    content ──opener of a call──▶ call ──closed──▶ content      a call is shown when it is complete: a broken one is text
       │  ▲                        └──broken──▶ content         (a call that a grammar forces is shown as it grows)
       ▼  │
    reasoning

White space beside calls and reasoning is dropped; templates put it there again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from contracts.answers.parts import Output, Reader, Sink
from contracts.answers.source import CallText, NotACall, Reading


class Trigger(NamedTuple):
    """One thing that begins in content: the text that is searched for, and what it means.

    `reader`: of the call that it opens; None if it opens reasoning (`reasons`) or is dropped. `only_first`: it counts only where the
    content begins.
    """

    text: str
    reader: Reader | None = None
    reasons: bool = False
    only_first: bool = False


class TextReader:
    """See the module. `reasoning_end` is empty without any; `in_reasoning`: the prompt has opened reasoning already."""

    def __init__(
        self,
        output: Output,
        sink: Sink,
        triggers: Sequence[Trigger],
        reasoning_end: str = "",
        *,
        in_reasoning: bool = False,
    ) -> None:
        self._output, self._sink = output, sink
        self._triggers = {trigger.text: trigger for trigger in triggers}
        self._anywhere = [trigger.text for trigger in triggers if not trigger.only_first]
        self._first = [trigger.text for trigger in triggers if trigger.only_first]
        self._find, self._find_first = _alternatives(self._anywhere), _alternatives(self._first)
        self._end, self._in_reasoning, self._at_start = reasoning_end, in_reasoning, True
        self._held = ""
        self._call: _OpenCall | None = None

    def feed(self, text: str) -> None:
        """More text."""
        if self._call is not None:
            self._call.source.text += text
        else:
            self._held += text
        self._go()

    def end(self) -> None:
        """There is no more text."""
        if self._call is not None:
            self._call.source.ended = True
            self._go()
        if self._in_reasoning:
            self._output.think(self._held.rstrip())
        else:
            self._output.say(self._held)
        self._held = ""

    def _go(self) -> None:
        going = True
        while going:
            if self._call is not None:
                going = self._read_call(self._call)
            elif self._in_reasoning:
                going = self._read_reasoning()
            else:
                going = self._read_content()

    def _read_reasoning(self) -> bool:
        place = self._held.find(self._end)
        if place < 0:
            shown = certain(self._held, [self._end])
            self._output.think(self._held[:shown])
            self._held = self._held[shown:]
            return False
        self._output.think(self._held[:place].rstrip())
        self._held = self._held[place + len(self._end) :]
        self._in_reasoning, self._at_start = False, True
        self._output.trim()
        return True

    def _read_content(self) -> bool:
        if self._at_start and self._first:
            match = self._find_first.match(self._held.lstrip())
            if match is not None:
                self._held = self._held.lstrip()
                return self._open(match)
            if any(text.startswith(self._held.lstrip()) for text in self._first):
                return False  # it may still become one of them
        match = self._find.search(self._held)
        if match is not None:
            return self._open(match)
        shown = certain(self._held, self._anywhere)
        self._say(self._held[:shown])
        self._held = self._held[shown:]
        return False

    def _open(self, match: re.Match[str]) -> bool:
        trigger, before, rest = self._triggers[match[0]], self._held[: match.start()], self._held[match.end() :]
        said = before.rstrip()
        self._say(said)
        if trigger.reader is None:
            self._held, self._in_reasoning = rest, trigger.reasons
            self._output.trim()
            return True
        source = CallText(trigger.text + rest)
        source.place = len(trigger.text)
        self._call = _OpenCall(source, trigger.reader(source, self._sink), before[len(said) :], trigger.text)
        self._held, self._at_start = "", False
        return True

    def _read_call(self, call: _OpenCall) -> bool:
        try:
            for _ in call.reading:
                self._show_forced(call)
                if not call.source.ended:
                    return False
            self._sink.check()
        except NotACall as error:
            self._show_forced(call)
            self._output.broken(error)
            self._give_up(call)
            return True
        self._output.call(self._sink.said)
        self._sink.said.clear()
        self._output.trim()
        self._held, self._call = call.source.text[call.source.place :], None
        return True

    def _show_forced(self, call: _OpenCall) -> None:
        if self._sink.is_forced and self._sink.said:
            call.is_shown = True
            self._output.call(self._sink.said)
            self._sink.said.clear()

    def _give_up(self, call: _OpenCall) -> None:
        """It is no call: text, in which another one may begin."""
        self._call = None
        self._sink.said.clear()
        text = call.source.text
        if call.is_shown:  # the answer was cut inside of a forced call
            self._held = "" if call.source.ended else text[call.source.place :]
            return
        self._say(call.space + call.opener)
        self._held = text[len(call.opener) :]
        if call.source.ended:
            self._say(self._held)
            self._held = ""

    def _say(self, text: str) -> None:
        if text and not text.isspace():
            self._at_start = False
        self._output.say(text)


class _OpenCall:
    def __init__(self, source: CallText, reading: Reading[None], space: str, opener: str) -> None:
        self.source, self.reading = source, reading
        self.space, self.opener = space, opener
        self.is_shown = False


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def certain(text: str, stops: Iterable[str]) -> int:
    """How much of a text cannot be a part of one of these, nor white space before one."""
    size = len(text)
    for stop in stops:
        longest = min(len(text), len(stop) - 1)
        cut = next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
        size = min(size, len(text) - cut)
    return len(text[:size].rstrip())
