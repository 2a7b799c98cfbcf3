"""LiteLLM: rows of `LiteLLM_SpendLogs`, and standard logging payloads.

Newer proxies keep the prompt in `proxy_server_request` instead of `messages`; exports of a table have objects as texts of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commands.imports.repository import Links
from commands.imports.rows import ImportedRow, decoded
from contracts.tasks.scores import Refused, as_text, first


def rows(content: dict[str, Any], links: Links) -> Iterator[ImportedRow]:
    """See `Format.rows`."""
    del links
    if isinstance(payload := content.get("standard_logging_object"), dict):
        content = payload
    if content.get("status") == "failure" or content.get("error_str"):
        raise Refused("failed_call")
    request = decoded(content.get("proxy_server_request"))
    request = request.get("body", request) if isinstance(request, dict) else {}
    messages, response = decoded(content.get("messages")), decoded(content.get("response"))
    parameters = content.get("model_parameters") or {}
    metadata = decoded(content.get("metadata")) or {}
    name = as_text(first(content, "request_id", "id")) or ""
    shared = {
        "messages": messages or request.get("messages"),
        "tools": request.get("tools") or parameters.get("tools"),
        "at": content.get("startTime"),
        "finished_at": content.get("endTime"),
        "model": as_text(content.get("model")) or "",
        "user": as_text(content.get("end_user")) or as_text(request.get("user")) or as_text(content.get("user")),
        "session": as_text(content.get("session_id")) or as_text(metadata.get("session_id")),
        "prompt_tokens": content.get("prompt_tokens"),
        "completion_tokens": content.get("completion_tokens"),
        "cost": first(content, "response_cost", "spend"),
    }
    if not isinstance(response, dict) or not isinstance(response.get("choices"), list):
        yield ImportedRow(answer=response or None, id=name, **shared)
        return
    for place, choice in enumerate(response["choices"]):
        if not isinstance(choice, dict):
            raise Refused("malformed_answer")
        named = f"{name}:{place}" if name else ""
        yield ImportedRow(
            answer=choice.get("message"), id=named, finish_reason=str(choice.get("finish_reason")), **shared
        )
