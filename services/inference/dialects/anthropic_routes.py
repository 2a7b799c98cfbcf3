"""The routes of Anthropic's messages API: `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response

from contracts.errors import Unsupported, field_error
from services.http import InferenceCaller, off_loop, reply, with_caller
from services.inference.dialects.anthropic_fields import HARMLESS, NEUTRAL, MessageBody, read_message
from services.inference.dialects.anthropic_replies import MessageReplies, in_anthropics_shape
from services.inference.dialects.anthropic_requests import lowered
from services.inference.fields import NOTES
from services.inference.responder import Asked, Responder
from services.inference.terms import pinned_version
from services.openapi import takes

_VERSIONS = ("2023-06-01", "2026-10-21")
"""They mean the same here: sampling fields, which the newer one lacks, are taken in both."""
_NOTES = {
    **{name: NOTES[name] for name in ("model", "stream", "top_p", "top_k", "tools")},
    "system": "The first message of the prompt.",
    "stop_sequences": "Up to 4 texts; the answer ends before the first of them.",
    "temperature": "A task that owns its sampling replaces it, `top_p` and `top_k`.",
    "messages": "Turns of the user and of the assistant; the last one is not the assistant's.",
    "tool_choice": "Without it `auto`, if there are tools.",
    "thinking": "Switches reasoning, where the chat template has a switch.",
    "output_config": "A schema that the answer must have, and the effort.",
    **dict.fromkeys(HARMLESS, "Accepted with any value, without effect."),
    **dict.fromkeys(NEUTRAL, "Not served; null is accepted."),
}
_EXAMPLE: dict[str, Any] = {
    "model": "reservations",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "A table for four on Friday at half past seven, please. Anna."}],
    "metadata": {"user_id": "anna", "session_id": "visit-7"},
}


def add_message_routes(service: FastAPI, responder: Responder) -> None:
    """Add the routes to an application."""
    planner, limit = responder.planner, responder.admission.limit

    @in_anthropics_shape
    @with_caller
    @takes(MessageBody, notes=_NOTES, example=_EXAMPLE)
    async def create_message(client: Request, caller: InferenceCaller) -> Response:
        """Answer a conversation, as Anthropic's messages API.

        The id of the message is the id of the completion. Failures have Anthropic's shape. The key may be sent as `x-api-key`.
        """

        async def read(body: bytes) -> Asked:
            _check_version(client.headers)
            return await off_loop(asked_of, body)

        response = await responder.respond(client, caller, read, "messages")
        if (completion_id := response.headers.get("x-request-id")) is not None:
            response.headers["request-id"] = completion_id
        return response

    def asked_of(body: bytes) -> Asked:
        sent = read_message(body)
        if sent.max_tokens is None:
            raise field_error("max_tokens", "is missing: the longest answer, in tokens")
        shows_thinking = sent.thinking is None or sent.thinking.display != "omitted"
        return Asked([lowered(sent, planner.template)], partial(MessageReplies, shows_thinking=shows_thinking))

    @in_anthropics_shape
    @with_caller
    @takes(MessageBody, notes=_NOTES, example=_EXAMPLE)
    async def count_message_tokens(client: Request, caller: InferenceCaller) -> Response:
        """How many tokens the prompt of a message has: exactly those that the policy would see."""
        _check_version(client.headers)
        headers, body = await limit.check(caller), await client.body()
        request = await off_loop(lambda body: lowered(read_message(body), planner.template), body)
        pinned_version(request.model, planner.policy)
        return reply({"input_tokens": len(await planner.template.encode_chat(request))}, headers=headers)

    service.add_route("/v1/messages", create_message, methods=["POST"])
    service.add_route("/v1/messages/count_tokens", count_message_tokens, methods=["POST"])


def _check_version(headers: Mapping[str, str]) -> None:
    version = headers.get("anthropic-version", _VERSIONS[-1])
    if version not in _VERSIONS:
        why = f"{version[:32]!r} is not supported; send {' or '.join(_VERSIONS)}"
        raise field_error("anthropic-version", why, Unsupported)
