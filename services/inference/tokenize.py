"""`POST /tokenize`: the token ids of a prompt or a chat, in vLLM's shape; exactly those that the policy would see."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import msgspec
from fastapi import FastAPI, Request, Response
from tokenizers import Tokenizer

from contracts.errors import InvalidRequest, Unsupported
from runtime.template.chat_template import ChatTemplate
from runtime.template.plain_tokenizer import bounded_ids
from services.http import InferenceCaller, off_loop, reply, with_caller
from services.inference.bounds import check_variables, unserved
from services.inference.fields import MAX_MESSAGES, ChatMessage, check_neutral, read_fields
from services.inference.formats import Json, OfferedTool, check_tool_choice, check_tools
from services.inference.plan import Planner
from services.inference.requests import ChatRequest, check_size, plain_messages
from services.inference.terms import pinned_version
from services.limits import Limit
from services.openapi import takes

_UNSERVED = ("chat_template", "media_io_kwargs", "mm_processor_kwargs")


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a prompt, which is taken as it is, or messages."""

    model: str | None = None
    """The policy; without it this policy."""
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=MAX_MESSAGES)] | None = None
    tools: list[OfferedTool] | None = None
    add_generation_prompt: bool = True
    """Messages end with the beginning of an answer."""
    add_special_tokens: bool | None = None
    """Of a prompt: whether the tokenizer adds its own tokens; true without it. Those of messages come from the template."""
    return_token_strs: bool | None = None
    """Also the tokens as the vocabulary writes them."""
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    continue_final_message: bool = False
    chat_template: Json = msgspec.UNSET
    media_io_kwargs: Json = msgspec.UNSET
    mm_processor_kwargs: Json = msgspec.UNSET


def add_tokenize_route(service: FastAPI, planner: Planner, limit: Limit) -> None:
    """Add the route to an application."""
    policy, template = planner.policy, planner.template

    @with_caller
    @takes(
        Tokenize,
        notes={
            "prompt": "A text.",
            "messages": "Those of chats.",
            "tools": "Those of chats.",
            "chat_template_kwargs": "Variables of the chat template.",
            "continue_final_message": "Not served; false is accepted.",
            **dict.fromkeys(_UNSERVED, "Not served; null is accepted."),
        },
        example={"model": "reservations", "messages": [{"role": "user", "content": "A table for four."}]},
    )
    async def tokenize(client: Request, caller: InferenceCaller) -> Response:
        """The tokens of a prompt or of messages, as vLLM's route of this name."""
        headers, body = await limit.check(caller), await client.body()
        asked, request = await off_loop(lambda body: read_tokenize(body, policy), body)
        pinned_version(asked.model or policy, policy)
        if request is None:
            ids = await _prompt_ids(template, asked)
        else:
            ids = await template.encode_chat(request, opens_answer=asked.add_generation_prompt)
        names = await asyncio.to_thread(_names, ids, template.tokenizer) if asked.return_token_strs else None
        content = {"count": len(ids), "max_model_len": template.context, "tokens": ids, "token_strs": names}
        return reply(content, headers=headers)

    service.add_route("/tokenize", tokenize, methods=["POST"])


def read_tokenize(body: bytes, policy: str) -> tuple[Tokenize, ChatRequest | None]:
    """Read and check a body; the request for a chat, if it has messages. Raises InvalidRequest, Unsupported: `param` names the field."""
    check_size(body, "messages", "prompt")
    asked = read_fields(Tokenize, body)
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest("send either `prompt` or `messages`", param="messages")
    check_neutral(asked, dict.fromkeys(_UNSERVED, ()), {})
    if asked.continue_final_message:
        raise unserved("continue_final_message")
    if asked.messages is not None and asked.add_special_tokens:
        why = "of messages is not supported: the template writes them"
        raise Unsupported(f"`add_special_tokens` {why}", param="add_special_tokens")
    if asked.messages is None and (asked.tools or asked.chat_template_kwargs or not asked.add_generation_prompt):
        raise InvalidRequest("a prompt is taken as it is; send `messages` with the other fields", param="prompt")
    return asked, None if asked.messages is None else _chat_of(asked, policy)


async def _prompt_ids(template: ChatTemplate, asked: Tokenize) -> list[int]:
    text = template.bounded(asked.prompt or "", "prompt")
    encode = partial(template.tokenizer.encode_batch_fast, add_special_tokens=asked.add_special_tokens is not False)
    [encoded] = await asyncio.to_thread(encode, [text])
    return bounded_ids(encoded, template.context, "prompt")


def _names(ids: list[int], vocabulary: Tokenizer) -> list[str | None]:
    return [vocabulary.id_to_token(one) for one in ids]


def _chat_of(asked: Tokenize, policy: str) -> ChatRequest:
    tools = check_tools(asked.tools)
    return ChatRequest(
        model=asked.model or policy,
        messages=plain_messages(asked.messages or []),
        tools=tools,
        tool_choice=check_tool_choice(None, tools),
        template_variables=check_variables(asked.chat_template_kwargs or {}),
    )
