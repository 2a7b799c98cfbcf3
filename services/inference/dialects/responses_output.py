"""The items of one answer in the shape of the Responses API, and the events of a stream that build them. Pure.

In: additions to a choice. Out: events without their numbers; at the end the whole items. An answer that is not streamed is built by the
same additions, so both are equal. One item is open at a time: another kind of addition, or another call, closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from contracts.answers.parts import CallPart
from services.inference.answer import Delta
from services.inference.dialects.responses_items import Item, packed_reasoning

Event = dict[str, Any]
Status = Literal["completed", "incomplete"]
Kind = Literal["message", "reasoning", "function_call"]
_PREFIXES: dict[Kind, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass(frozen=True)
class _Open:
    """The item that grows."""

    kind: Kind
    id: str
    index: int
    head: Item
    pieces: list[str]
    logprobs: list[dict[str, Any]]
    call: int
    """Its number, or -1."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _PARTS[self.kind], "text": self.text}
        return part if self.kind == "reasoning" else {**part, "annotations": [], "logprobs": list(self.logprobs)}

    def event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.index, **fields}


class ResponseOutput:
    """See the module.

    Args:
        answer: the uuid of the response, part of the ids of its items.
        logprobs_of: shows the log-probs of the tokens behind a start, up to an end, that made text; None: nobody asked for them.
        packs_reasoning: whether items of reasoning have `encrypted_content`.

    Attributes:
        items: those that are whole.
    """

    def __init__(
        self,
        answer: str,
        logprobs_of: Callable[[int, int], list[dict[str, Any]]] | None,
        *,
        packs_reasoning: bool,
    ) -> None:
        self.items: list[Item] = []
        self._answer = answer
        self._logprobs_of = logprobs_of
        self._packs_reasoning = packs_reasoning
        self._num_tokens = self._num_told = 0
        self._open: _Open | None = None

    def add(self, delta: Delta) -> Iterator[Event]:
        """The events for what one step added."""
        self._num_tokens += len(delta.tokens)
        if delta.reasoning:
            yield from self._grow("reasoning", delta.reasoning)
        if delta.text:
            start, self._num_told = self._num_told, self._num_tokens
            logprobs = [] if self._logprobs_of is None else self._logprobs_of(start, self._num_told)
            yield from self._grow("message", delta.text, logprobs)
        for part in delta.calls:
            yield from self._call(part)

    def end(self, status: Status) -> Iterator[Event]:
        """The events that close the last item; an answer without any item has an empty text."""
        if self._open is None and not self.items:
            yield from self._begin("message", {"role": "assistant"})
        yield from self._close(status)

    def _grow(self, kind: Kind, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        item = self._open
        if item is None or item.kind != kind:
            yield from self._close("completed")
            item = yield from self._begin(kind, {"role": "assistant"} if kind == "message" else {"summary": []})
        item.pieces.append(text)
        item.logprobs.extend(logprobs)
        added = {"logprobs": list(logprobs)} if kind == "message" else {}
        yield item.event(f"response.{_PARTS[kind]}.delta", content_index=0, delta=text, **added)

    def _call(self, part: CallPart) -> Iterator[Event]:
        item = self._open
        if item is None or item.call != part.number:
            yield from self._close("completed")
            item = yield from self._begin("function_call", {"call_id": part.id, "name": part.name}, part.number)
        if part.arguments:
            item.pieces.append(part.arguments)
            yield item.event("response.function_call_arguments.delta", delta=part.arguments)

    def _begin(self, kind: Kind, fields: Item, call: int = -1) -> Generator[Event, None, _Open]:
        index = len(self.items)
        item_id = f"{_PREFIXES[kind]}_{self._answer}_{index}"
        head = {"id": item_id, "type": kind, **fields}
        self._open = opened = _Open(kind, item_id, index, head, [], [], call)
        empty: Item = {"arguments": ""} if kind == "function_call" else {"content": []}
        item = {**head, "status": "in_progress", **empty}
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        if kind != "function_call":
            yield opened.event("response.content_part.added", content_index=0, part=opened.part())
        return opened

    def _close(self, status: Status) -> Iterator[Event]:
        if (ended := self._open) is None:
            return
        if ended.kind == "function_call":
            item = {**ended.head, "status": status, "arguments": ended.text}
            yield ended.event("response.function_call_arguments.done", name=ended.head["name"], arguments=ended.text)
        else:
            part = ended.part()
            item = {**ended.head, "status": status, "content": [part]}
            told = {"logprobs": ended.logprobs} if ended.kind == "message" else {}
            yield ended.event(f"response.{_PARTS[ended.kind]}.done", content_index=0, text=ended.text, **told)
            yield ended.event("response.content_part.done", content_index=0, part=part)
            if ended.kind == "reasoning" and self._packs_reasoning:
                item["encrypted_content"] = packed_reasoning(ended.text)
        self.items.append(item)
        self._open = None
        yield {"type": "response.output_item.done", "output_index": ended.index, "item": item}
