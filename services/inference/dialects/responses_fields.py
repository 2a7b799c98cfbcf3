"""The fields of `POST /v1/responses`, OpenAI's Responses API: served, without effect, or refused by name, as in `inference/fields.py`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from contracts.errors import Unsupported
from services.inference.bounds import unserved
from services.inference.fields import StreamOptions, chat_notes, check_neutral, unserved_notes, with_unserved
from services.inference.formats import Json

MAX_ITEMS = 4096
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
INCLUDED = (
    LOGPROBS, ENCRYPTED, "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
)  # fmt: skip
"""Values of `include`. Those after the first two add to items that no answer has."""
HARMLESS = (
    "max_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier",
)  # fmt: skip
"""Accepted with any value: they are about speed, price, caches, or calls of tools that the server runs."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "access_programs": ({},),
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "image": ({},),
    "moderation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
"""Not served; accepted with null or one of these values, which change nothing."""


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the text of an answer must look like."""

    type: str
    """`text`, `json_object` or `json_schema`."""
    name: str | None = None
    schema: Json = msgspec.UNSET
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the text of an answer."""

    format: TextFormat | None = None
    verbosity: str | None = None
    """Accepted with any value, without effect."""


class ReasoningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the policy should reason."""

    effort: str | None = None
    """A variable of the chat template; without effect on a template that has none."""
    summary: str | None = None
    """Reasoning comes back as it is, without a summary; `auto` is accepted."""
    generate_summary: str | None = None
    """The old name of `summary`."""
    context: str | None = None
    """The chat template decides; `auto` is accepted."""
    mode: str | None = None
    """Not served; `standard` is accepted."""


class ResponsesFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are served, in the form in which callers send them."""

    model: str
    input: str | Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_ITEMS)]
    instructions: str | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    # Beyond OpenAI's, with the meaning that they have in chats.
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    return_token_ids: bool | None = None


ResponsesBody = with_unserved("ResponsesBody", ResponsesFields, (*HARMLESS, *NEUTRAL))
_NEUTRAL_REASONING = {"summary": "auto", "generate_summary": "auto", "context": "auto", "mode": "standard"}
_REMEDIES = {
    "background": "send `stream` and read the answer as it is made",
    "context_management": "send a shorter conversation",
    "conversation": "send `previous_response_id`",
    "prompt": "send `instructions` and `input`",
    "truncation": "send a shorter conversation",
}
_NOTES = {
    "input": f"A text of a user, or up to {MAX_ITEMS:,} items: messages, calls and their results, reasoning, references to items.",
    "instructions": "A system message before all others. It is not kept for later responses.",
    "previous_response_id": "Answers what comes after this response, which must be kept here.",
    "include": f"Of {', '.join(f'`{name}`' for name in INCLUDED)}; those of tools that no server runs add nothing.",
    "tools": "The functions that the answer may call; tools that a server runs are refused.",
    "text": "The form of the text: `format` and `verbosity`.",
    "reasoning": "How the policy should reason.",
    "max_output_tokens": "The longest answer, in tokens, reasoning included.",
    "top_logprobs": "How many of the likeliest tokens to name at each place; needs `message.output_text.logprobs` in `include`.",
    "stream_options": "Accepted: streams are never obfuscated, and always have the usage.",
    "store": "Whether the answer may be kept, learned from and gone back to; without it the task decides.",
    "return_token_ids": "vLLM's: the response has the token ids of prompt and answer.",
    "seed": "A signed 64-bit number.",
    "repetition_penalty": "vLLM's: logits of tokens that were there are divided by it; 1 is off.",
    "chat_template_kwargs": "vLLM's: variables of the chat template, for example `enable_thinking`.",
    "parallel_tool_calls": "False: at most one call in an answer.",
}
RESPONSES_EXAMPLE: dict[str, Any] = {
    "model": "reservations",
    "input": "A table for four on Friday at half past seven, please. Anna.",
    "metadata": {"session_id": "visit-7"},
}


def responses_notes() -> dict[str, str]:
    """By field: what it does, and the values that are accepted of a field that is not served."""
    known = ResponsesBody.__struct_fields__
    notes = {name: text for name, text in chat_notes().items() if name in known} | _NOTES
    return notes | unserved_notes(HARMLESS, NEUTRAL)


def check_unserved(body: Any) -> None:
    """Refuse fields, options and inclusions that are not served and would change the answer. Raises Unsupported: `param` names the field."""
    check_neutral(body, NEUTRAL, _REMEDIES)
    for name, neutral in _NEUTRAL_REASONING.items():
        if body.reasoning is not None and getattr(body.reasoning, name) not in (None, neutral):
            raise unserved(f"reasoning.{name}", f"leave it out, or send {neutral!r}")
    for value in body.include or ():
        if value not in INCLUDED:
            raise Unsupported(f"include takes {', '.join(INCLUDED)}, not {value[:64]!r}", param="include")
