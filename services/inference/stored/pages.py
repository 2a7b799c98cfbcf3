"""Stored completions in OpenAI's shapes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from contracts.errors import Unsupported
from contracts.records import unpack_ids
from services.http import field_error
from services.inference.replies import fingerprint, message_of
from services.inference.stored.queries import StoredChoice

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_ORDERS = ("asc", "desc")
_SHOWN = 64


def read_limit(text: str | None) -> int:
    """The parameter `limit`. Raises InvalidRequest if it is out of bounds."""
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_LIMIT)) and 1 <= int(text) <= MAX_LIMIT):
        raise field_error("limit", f"must lie in [1, {MAX_LIMIT}], not {text[:20]!r}")
    return int(text)


def read_order(text: str | None) -> bool:
    """The parameter `order`: True for newest first. Raises InvalidRequest if it has another value."""
    if text not in (None, *_ORDERS):
        raise field_error("order", f"is asc or desc, not {text[:20]!r}")
    return text == "desc"


def refuse_parameters(names: Iterable[str], *served: str) -> None:
    """Raises Unsupported if one of these parameters is not served. `metadata[KEY]` stands for any key."""
    for name in names:
        if name not in served and not (_is_pair(name) and "metadata[KEY]" in served):
            known = f"there are {', '.join(served)}" if served else "there is none"
            raise Unsupported(f"`{name[:_SHOWN]}` is not a parameter here; {known}", param=name[:_SHOWN])


def read_pairs(parameters: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The parameters `metadata[key]=value`."""
    return {name[len("metadata[") : -1]: value for name, value in parameters if _is_pair(name)}


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
    """A page of the messages that a completion answered. Raises InvalidRequest: `after` is not the id of one of them."""
    record, body = choices[0]
    empty = {"content": None, "refusal": None, "content_parts": None}
    shown = [{"id": f"{record.completion_id}-{num}", **empty, **message} for num, message in enumerate(body.messages)]
    return page_of(shown[::-1] if newest_first else shown, after, limit, "a message of this completion")


def page_of(items: list[dict[str, Any]], after: str | None, limit: int, what: str) -> dict[str, Any]:
    """The page of things with ids behind the one with the id `after`. Raises InvalidRequest if that is not the id of `what`."""
    start = 0
    if after is not None:
        start = next((place + 1 for place, item in enumerate(items) if item["id"] == after), -1)
        if start < 0:
            raise field_error("after", f"is the id of {what}")
    return listed(items[start : start + limit], has_more=start + limit < len(items))


def listed(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of things with ids."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _choice(choice: StoredChoice) -> dict[str, Any]:
    record, body = choice
    reason = "tool_calls" if body.tool_calls and record.finish_reason == "stop" else record.finish_reason
    message = message_of(body.text, body.reasoning, body.tool_calls)
    return {"index": record.choice, "message": message, "logprobs": None, "finish_reason": reason}


def _is_pair(name: str) -> bool:
    return name.startswith("metadata[") and name.endswith("]")


def _num_ids(packed: bytes) -> int:
    return len(unpack_ids(packed))
