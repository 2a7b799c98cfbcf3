"""OpenAI: stored chat completions, batch results with their requests, and files for fine-tuning.

A stored completion has its prompt in `messages` (of `GET /chat/completions/ID/messages`, added to it). A line of a batch's result has no
prompt: the line of the request with the same `custom_id` must be in the same input. A preference is read as in `jsonl.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from commands.imports.formats import jsonl
from commands.imports.repository import ExportLink, Links
from commands.imports.rows import ImportedRow
from contracts.tasks.scores import Refused, as_text


def links(content: dict[str, Any]) -> Iterator[ExportLink]:
    """The requests of a batch."""
    if "custom_id" in content and isinstance(content.get("body"), dict):
        yield ExportLink("request", str(content["custom_id"]), msgspec.json.encode(content["body"]))


def rows(content: dict[str, Any], links: Links) -> Iterator[ImportedRow]:
    """See `Format.rows`."""
    if "custom_id" in content:
        if isinstance(content.get("body"), dict):
            return iter(())
        response = content.get("response") or {}
        if content.get("error") or response.get("status_code", 200) >= 400:  # noqa: PLR2004 a status of HTTP
            raise Refused("failed_call")
        asked = links.find("request", str(content["custom_id"]))
        request = msgspec.json.decode(asked[0]) if asked else {}
        return _choices(response.get("body") or {}, request, str(content.get("id") or ""))
    if isinstance(content.get("choices"), list):
        return _choices(content, content, "")
    if "preferred_output" in content or "non_preferred_output" in content:
        asked_for = content.get("input") or {}
        pair = {"preferred": content.get("preferred_output"), "rejected": content.get("non_preferred_output")}
        return jsonl.rows({**{name: asked_for.get(name) for name in ("messages", "tools")}, **pair}, links)
    return jsonl.rows({name: content.get(name) for name in ("messages", "tools")}, links)


def _choices(answer: dict[str, Any], request: dict[str, Any], name: str) -> Iterator[ImportedRow]:
    usage = answer.get("usage") or {}
    metadata = request.get("metadata") or answer.get("metadata") or {}
    name = str(answer.get("id") or name)
    for place, choice in enumerate(answer.get("choices") or ()):
        if not isinstance(choice, dict):
            raise Refused("malformed_answer")
        yield ImportedRow(
            messages=_prompt(request),
            answer=choice.get("message"),
            id=f"{name}:{choice.get('index', place)}" if name else "",
            tools=request.get("tools"),
            at=answer.get("created"),
            model=as_text(answer.get("model")) or "",
            user=as_text(request.get("safety_identifier") or request.get("user")),
            session=as_text(metadata.get("session_id")),
            store=request.get("store") if isinstance(request.get("store"), bool) else None,
            finish_reason=str(choice.get("finish_reason")),
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=usage.get("completion_tokens"),
        )


def _prompt(request: dict[str, Any]) -> Any:
    messages = request.get("messages")
    return messages.get("data") if isinstance(messages, dict) else messages
