"""What the OpenAPI document says about the fields of `POST /v1/responses`, and the example that it shows. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from services.inference.dialects.responses_fields import HARMLESS, INCLUDED, MAX_ITEMS, NEUTRAL, ResponsesBody
from services.inference.field_notes import chat_notes

_TEXTS = {
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
}
RESPONSES_EXAMPLE: dict[str, Any] = {
    "model": "reservations",
    "input": "A table for four on Friday at half past seven, please. Anna.",
    "metadata": {"session_id": "visit-7"},
}


def responses_notes() -> dict[str, str]:
    """By field: what it does, and the values that are accepted of a field that is not served."""
    known = ResponsesBody.__struct_fields__
    notes = {name: text for name, text in chat_notes().items() if name in known} | _TEXTS
    notes["seed"] = "A signed 64-bit number."
    notes["repetition_penalty"] = "vLLM's: logits of tokens that were there are divided by it; 1 is off."
    notes["chat_template_kwargs"] = "vLLM's: variables of the chat template, for example `enable_thinking`."
    notes["parallel_tool_calls"] = "False: at most one call in an answer."
    notes |= dict.fromkeys(HARMLESS, "Accepted with any value, without effect.")
    for name, values in NEUTRAL.items():
        shown = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in (*values, None))
        notes[name] = f"Not served; accepted: {shown}."
    return notes
