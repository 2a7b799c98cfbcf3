"""What the OpenAPI document says about the fields of a chat beside their types, and the examples that it shows. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from services.inference import bounds
from services.inference.fields import HARMLESS, MAX_MESSAGES, NEUTRAL
from services.inference.prompts import PromptBody

_TEXTS = {
    "model": "The policy, or `policy@vN` for one version of it.",
    "messages": f"The conversation: up to {MAX_MESSAGES:,} messages.",
    "n": "How many answers.",
    "stream": "Answer with server-sent events.",
    "stream_options": "`include_usage` adds a last chunk with the usage.",
    "max_tokens": "The longest answer, in tokens.",
    "max_completion_tokens": "The newer name of `max_tokens`; of both, the smaller one counts.",
    "temperature": "A task that owns its sampling replaces it.",
    "top_p": "The share of probability that is sampled from.",
    "top_k": "The number of tokens that is sampled from.",
    "stop": f"Up to {bounds.MAX_STOPS} texts; the answer ends before the first of them.",
    "logprobs": "The log-prob of each token: of the distribution that it was sampled from.",
    "top_logprobs": "How many of the likeliest tokens to name at each place; needs `logprobs`.",
    "frequency_penalty": "Lowers the logit of a token by this much for each time that the answer has it.",
    "presence_penalty": "Lowers the logit of every token that the answer has.",
    "tools": "The functions that the answer may call.",
    "tool_choice": "`auto`, `none`, `required`, or one function.",
    "response_format": "`text`, `json_object` or `json_schema`.",
    "logit_bias": "Token id to what is added to its logit, in [-100, 100]; up to 1,024.",
    "metadata": "Up to 16 pairs; `task`, `session_id`, `join_key` and `reference` have a meaning here.",
    "store": "Whether the answer may be kept and learned from; without it the task decides.",
    "user": "Who asked.",
    "safety_identifier": "Who asked; it wins over `user`.",
}
CHAT_EXAMPLE: dict[str, Any] = {
    "model": "reservations",
    "messages": [{"role": "user", "content": "A table for four on Friday at half past seven, please. Anna."}],
    "metadata": {"session_id": "visit-7"},
}


PROMPT_EXAMPLE: dict[str, Any] = {"model": "reservations", "prompt": "A table for", "max_tokens": 8}


def prompt_notes() -> dict[str, str]:
    """As `chat_notes`, for `/v1/completions`."""
    notes = {name: text for name, text in chat_notes().items() if name in PromptBody.__struct_fields__}
    notes["seed"] = "A signed 64-bit number; each choice gets a seed derived from it."
    notes |= {"return_token_ids": "vLLM's: the response has the token ids of prompt and answer."}
    notes["logprobs"] = f"From 0 to {bounds.MAX_TOP_LOGPROBS}."
    notes |= dict.fromkeys(("echo", "suffix", "best_of"), "Not served; a value that changes nothing is accepted.")
    return notes


def chat_notes() -> dict[str, str]:
    """By field: what it does, its bounds, and the values that are accepted of a field that is not served."""
    notes = dict(_TEXTS)
    for name, bound in bounds.BOUNDS.items():
        notes[name] = f"{notes.get(name, '')} It {bound}{bound.remark}.".strip()
    notes |= dict.fromkeys(HARMLESS, "Accepted with any value, without effect.")
    for name, values in NEUTRAL.items():
        shown = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in (*values, None))
        notes[name] = f"Not served; accepted: {shown}."
    return notes
