"""The response to one request of the Responses API, whole or as a stream of events.

The shapes are OpenAI's. Beside its fields stand `completion_id`, `policy_version`, `sampling`, `store` and, if the task asks users for
feedback, `ask_feedback`; with `return_token_ids` also `prompt_token_ids` and `token_ids`. The last event of a stream is
`response.completed`, `response.incomplete` or `response.failed`. The error of a failed one stands outside of the response too: SDKs
look for it there, and raise. An answer that is not streamed is built by the same additions, so both are equal. One item is open at a time:
another kind of addition, or another call, closes it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from tokenizers import Tokenizer

from contracts.answers.parts import CallPart
from contracts.errors import MillraceError, RateLimited
from contracts.ids import response_id_of
from services.inference.answer import Delta
from services.inference.completion import Completion
from services.inference.dialects.responses_items import PREFIXES, Item, packed_reasoning, with_ids
from services.inference.dialects.responses_kept import ResponseStore
from services.inference.dialects.responses_requests import ResponsesRequest, reword
from services.inference.formats import ToolChoice
from services.inference.replies import NamedEvents, logprob_of, prompt_ids, token_ids
from services.inference.requests import ChatRequest

Event = dict[str, Any]
Status = Literal["completed", "incomplete"]
Kind = Literal["message", "reasoning", "function_call"]
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
    """The items of one answer, and the events of a stream that build them. `answer`: the uuid of the response; `items`: those that are whole.

    `logprobs_of` shows the log-probs of the tokens behind a start, up to an end, that made text; None: nobody asked for them.
    `packs_reasoning`: whether items of reasoning have `encrypted_content`.
    """

    def __init__(
        self, answer: str, logprobs_of: Callable[[int, int], list[dict[str, Any]]] | None, *, packs_reasoning: bool
    ) -> None:
        self.items: list[Item] = []
        self._answer, self._logprobs_of = answer, logprobs_of
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
        item_id = f"{PREFIXES[kind]}_{self._answer}_{index}"
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


class ResponsesReplies(NamedEvents):
    """See the module. `earlier`: items of the conversation that `previous_response_id` names; `items`: of the request, without references."""

    def __init__(
        self,
        completion: Completion,
        tokenizer: Tokenizer,
        *,
        request: ResponsesRequest,
        earlier: Sequence[Item],
        items: Sequence[Item],
        store: ResponseStore,
    ) -> None:
        self._completion, self._plan, [self._choice] = completion, completion.plan, completion.choices
        self._request, self._store, self._tokenizer = request, store, tokenizer
        self._earlier, self._items = earlier, items
        self._id = response_id_of(self._plan.completion_id)
        self._uuid = self._id.partition("_")[2]
        logprobs_of = self._logprobs if self._plan.request.logprobs else None
        self._output = ResponseOutput(self._uuid, logprobs_of, packs_reasoning=request.packs_reasoning)
        self._num_events = 0
        self._ending: list[Event] | None = None
        self._ended: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        """See `Replies`."""
        for delta in self._completion.unread():
            list(self._output.add(delta))  # its events are for streams
        self._end()
        return self._whole()

    def chunks(self, delta: Delta) -> Iterator[Event]:
        """See `Replies`. The first two events have the response as it begins."""
        if self._num_events == 0:
            begun = self._response("in_progress") | {"output": []}
            yield self._numbered({"type": "response.created", "response": begun})
            yield self._numbered({"type": "response.in_progress", "response": begun})
        yield from map(self._numbered, self._output.add(delta))

    def closing(self) -> list[Event]:
        """See `Replies`."""
        events = [*self._end(), {"type": f"response.{self._status}", "response": self._whole()}]
        return list(map(self._numbered, events))

    def failure(self, error: MillraceError) -> Event:
        """See `Replies`."""
        reword(error)
        code = "rate_limit_exceeded" if isinstance(error, RateLimited) else "server_error"
        told = {"output": self._output.items, "error": {"code": code, "message": error.message}}
        failed = self._response("failed") | told
        return self._numbered({"type": "response.failed", "response": failed, **error.as_openai()})

    async def keep(self) -> None:
        """See `Replies`. An answer that may not be logged is not kept for later requests either."""
        if not self._plan.terms.logged:
            return
        self._end()
        own, output = with_ids(self._items, self._uuid), self._output.items
        items = [*self._earlier, *own, *output]
        await self._store.write(self._plan.owner, self._plan.completion_id, items, len(output), self._ended)

    @property
    def _status(self) -> Status:
        return "incomplete" if self._choice.finish_reason == "length" else "completed"

    def _end(self) -> list[Event]:
        if self._ending is None:
            self._ending = list(self._output.end(self._status))
            self._ended = self._response(self._status)
        return self._ending

    def _whole(self) -> dict[str, Any]:
        return self._ended | {"output": self._output.items}

    def _numbered(self, event: Event) -> Event:
        event["sequence_number"] = self._num_events
        self._num_events += 1
        return event

    def _logprobs(self, start: int, end: int) -> list[dict[str, Any]]:
        said, tokens = self._choice.said, self._choice.tokens
        first, last = (bisect_right(said, place, key=itemgetter(1)) for place in (start, end))
        spans = said[first:last]
        return [logprob_of(token, self._tokenizer) for begin, stop in spans for token in tokens[begin:stop]]

    def _response(self, status: Literal["in_progress", "failed"] | Status) -> dict[str, Any]:
        """Everything but the output."""
        plan, request, choice = self._plan, self._plan.request, self._choice
        has_ended = status in ("completed", "incomplete")
        response = {
            "id": self._id,
            "object": "response",
            "created_at": int(plan.created_at),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "background": False,
            "instructions": self._request.instructions,
            "max_output_tokens": request.longest,
            "max_tool_calls": None,
            "metadata": request.labels,
            "model": request.model,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": self._request.previous_response_id,
            "reasoning": {"effort": request.reasoning_effort, "summary": None},
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": plan.terms.logged,
            "temperature": plan.sampling.temperature,
            "text": {"format": _format_of(request), "verbosity": "medium"},
            "tool_choice": _choice_of(request.tool_choice) if request.tools else "auto",
            "tools": [_tool_of(tool["function"]) for tool in request.tools],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": plan.sampling.top_p,
            "truncation": "disabled",
            "usage": self._usage() if has_ended else None,
            "user": request.user,
            "completion_id": plan.completion_id,
            "policy_version": choice.version,
            "sampling": plan.sampling.in_full,
            **plan.asking,
        }
        return response | (prompt_ids(plan) | token_ids(plan, choice.tokens) if has_ended else {})

    def _usage(self) -> dict[str, Any]:
        num_prompt, num_made = len(self._plan.prompt_ids), len(self._choice.tokens)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": self._choice.num_cached, "cache_write_tokens": 0},
            "output_tokens": num_made,
            "output_tokens_details": {"reasoning_tokens": self._choice.num_reasoning},
            "total_tokens": num_prompt + num_made,
        }


def _tool_of(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "description": None, "parameters": None, "strict": False, **function}


def _choice_of(choice: ToolChoice) -> Any:
    told = choice.as_openai()
    if isinstance(told, str):
        return told
    if told["type"] == "function":
        return {"type": "function", "name": told["function"]["name"]}
    tools = [{"type": "function", "name": name} for name in choice.names or ()]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}


def _format_of(request: ChatRequest) -> dict[str, Any]:
    wanted = request.response_format
    if wanted is None:
        return {"type": "text"}
    told = wanted.as_openai()
    return {"type": told["type"], **told.get("json_schema", {})}
