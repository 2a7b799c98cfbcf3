"""Stored completions in OpenAI's shapes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import InvalidRequest
from contracts.records import unpack_ids
from services.inference.replies import fingerprint, message_of
from services.inference.stored.queries import StoredChoice, StoredPage

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_ORDERS = ("asc", "desc")


def read_limit(text: str | None) -> int:
    """The parameter `limit`. Raises InvalidRequest if it is out of bounds."""
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_LIMIT)) and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must lie in [1, {MAX_LIMIT}], not {text[:20]!r}", param="limit")
    return int(text)


def read_order(text: str | None) -> bool:
    """The parameter `order`: True for newest first. Raises InvalidRequest if it has another value."""
    if text not in (None, *_ORDERS):
        raise InvalidRequest(f"order is asc or desc, not {text[:20]!r}", param="order")
    return text == "desc"


def read_pairs(parameters: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The parameters `metadata[key]=value`."""
    prefix, end = "metadata[", "]"
    return {
        name[len(prefix) : -len(end)]: value
        for name, value in parameters
        if name.startswith(prefix) and name.endswith(end)
    }


def page_body(page: StoredPage) -> dict[str, Any]:
    """A page of completions."""
    return listed([completion_body(choices) for choices in page.completions], has_more=page.has_more)


def completion_body(choices: Sequence[StoredChoice]) -> dict[str, Any]:
    """A completion as it was answered, with the parameters that were used. How much of its prompt was cached is not stored."""
    record, body = choices[0]
    version = max((span.version for choice in choices for span in choice.record.spans), default=None)
    num_prompt, num_made = _num_ids(body.prompt_ids), sum(_num_ids(choice.body.completion_ids) for choice in choices)
    return {
        "id": record.completion_id,
        "object": "chat.completion",
        "created": int(record.created_at),
        "model": record.policy,
        "system_fingerprint": fingerprint(record.policy, version),
        "policy_version": version,
        "choices": [_choice(choice) for choice in choices],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_made,
            "total_tokens": num_prompt + num_made,
        },
        "metadata": body.metadata,
        "tools": body.tools or None,
        "tool_choice": body.tool_choice,
        "response_format": body.response_format,
        "sampling": record.sampling.in_full,
        "temperature": record.sampling.temperature,
        "top_p": record.sampling.top_p,
        "seed": record.sampling.seed,
        "frequency_penalty": record.sampling.frequency_penalty,
        "presence_penalty": record.sampling.presence_penalty,
    }


def messages_body(
    choices: Sequence[StoredChoice], after: str | None, limit: int, *, newest_first: bool
) -> dict[str, Any]:
    """A page of the messages that a completion answered.

    Raises:
        InvalidRequest: `after` is not the id of one of them.
    """
    record, body = choices[0]
    shown = [_message(f"{record.completion_id}-{number}", message) for number, message in enumerate(body.messages)]
    if newest_first:
        shown.reverse()
    start = 0
    if after is not None:
        start = next((place + 1 for place, message in enumerate(shown) if message["id"] == after), -1)
        if start < 0:
            raise InvalidRequest("after is the id of a message of this completion", param="after")
    return listed(shown[start : start + limit], has_more=start + limit < len(shown))


def listed(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of things with ids."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _choice(choice: StoredChoice) -> dict[str, Any]:
    record, body = choice
    reason = "tool_calls" if body.tool_calls and record.finish_reason == "stop" else record.finish_reason
    message = message_of(body.text, body.reasoning, body.tool_calls)
    return {"index": record.choice, "message": message, "logprobs": None, "finish_reason": reason}


def _message(message_id: str, message: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": message_id, "content": None, "refusal": None, "content_parts": None, **message}


def _num_ids(packed: bytes) -> int:
    return len(unpack_ids(packed))
