"""One choice as it grows: tokens in, visible text out. Pure.

Text is shown as soon as it is final: an incomplete character waits for its other bytes, and a text that may become a stop
string waits until this is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from contracts.answers.parts import NOTHING, CallPart, add_calls
from contracts.records import FinishReason
from contracts.sampling import Span
from engines.wire import Piece, RecordedExperts, SampledToken, System
from services.inference.tools.parser import AnswerParser


class Delta(NamedTuple):
    """What one step added to a choice."""

    choice: int
    text: str
    tokens: tuple[SampledToken, ...]
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbours of one choice as one delta, so that tokens that arrive together become one chunk.

    A delta may have reasoning or content, in this order, or calls: what a client shows keeps its order.
    """
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if last is None or last.choice != delta.choice or last.calls or delta.calls or (last.text and delta.reasoning):
            found.append(delta)
        else:
            reasoning = last.reasoning + delta.reasoning
            found[-1] = Delta(delta.choice, last.text + delta.text, last.tokens + delta.tokens, reasoning)
    return found


class StopFinder:
    """Cuts a text before the first stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found: str | None = None
        """The stop string that was found."""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text. Returns the text that is certainly before any stop string, and whether one was found."""
        if not self._stops:
            return text, False
        self._held += text
        found = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            place, self.found = min(found, key=itemgetter(0))
            return self._held[:place], True
        num_held = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown = self._held[: len(self._held) - num_held]
        self._held = self._held[len(shown) :]
        return shown, False

    def flush(self) -> str:
        """The text that was held back and did not become a stop string."""
        return self._held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class Choice:
    """One answer so far. Stop strings are looked for in its content (`text`), not in reasoning or calls (in OpenAI's form).

    `num_reasoning`: its tokens that made reasoning, markers before it included; `said`: start and end of its tokens that made content.
    """

    def __init__(self, index: int, parser: AnswerParser, stops: Sequence[str]) -> None:
        self.index = index
        self.tokens: list[SampledToken] = []
        self.spans: list[Span] = []
        self.text = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.finish_reason: FinishReason | None = None
        self.is_closed = False
        """The model ended it itself: not its length, and no stop string."""
        self.num_reasoning = 0
        self.said: list[tuple[int, int]] = []
        self._num_told = 0
        self._parser = parser
        self.experts: RecordedExperts | None = None
        self.num_cached = 0
        """How many tokens of the prompt the engine had computed before, as far as it says so."""
        self._has_told_cached = False
        self.system: System | None = None
        """What made the tokens; known with the first one."""
        self._lost_versions = False
        self._stop_finder = StopFinder(stops)

    @property
    def version(self) -> int | None:
        """The version that made the last token; None before the first."""
        return self.spans[-1].version if self.spans else None

    @property
    def stop(self) -> str | None:
        """The stop string that ended it; None if none did."""
        return self._stop_finder.found

    def add(self, piece: Piece) -> Delta:
        """Append new tokens. Those after a stop string are not part of the answer."""
        before, reason = len(self.tokens), piece.finish_reason
        text, reasoning, calls = "", "", list[CallPart]()
        for token in piece.tokens:
            self.tokens.append(token)
            part = self._parser.push(token.id)
            if part is NOTHING:
                continue
            start, self._num_told = self._num_told, len(self.tokens)
            if part.content:
                self.said.append((start, self._num_told))
            elif part.reasoning:
                self.num_reasoning += self._num_told - start
            shown, found = self._stop_finder.push(part.content)
            text, reasoning = text + shown, reasoning + part.reasoning
            calls += part.calls
            if found:
                reason = "stop"
                break
        else:
            if reason is not None:
                last = self._parser.flush()
                text, reasoning = text + self._rest(last.content), reasoning + last.reasoning
                calls += last.calls
        add_calls(self.calls, calls)
        self.reasoning += reasoning
        self._note(piece)
        self.text += text
        self.finish_reason, self.is_closed = reason, reason == "stop" and self.stop is None
        return Delta(self.index, text, tuple(self.tokens[before:]), reasoning, tuple(calls))

    def _note(self, piece: Piece) -> None:
        self._lost_versions |= piece.lost_versions
        if self._lost_versions:
            self.spans = []
        elif piece.spans:
            self.spans += [span for span in piece.spans if span.start < len(self.tokens)]
        if (
            piece.num_cached is not None and not self._has_told_cached
        ):  # of the first engine, if several made the answer
            self.num_cached, self._has_told_cached = piece.num_cached, True
        if piece.system is not None:
            self.system = piece.system.joined(self.system)
        self.experts = piece.experts or self.experts

    def _rest(self, content: str) -> str:
        shown, found = self._stop_finder.push(content)
        return shown if found else shown + self._stop_finder.flush()

    def cut(self, reason: Literal["cancelled", "error"]) -> None:
        """End an unfinished answer as it is; text that was held back is dropped."""
        if self.finish_reason is None:
            self.finish_reason = reason
