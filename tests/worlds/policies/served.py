"""Servers of a Millrace whose policy answers by a chain of known pieces: the real engine, and all that apps talk to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai

from commands.home import prepare_home
from commands.up import listen, new_settings
from tests.clients.server import MODEL, TASK
from tests.supervised import supervised
from tests.worlds.policies.chain import build_chain

CITY = {"type": "string", "enum": ["Paris", "Rome"]}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
OTHER = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 99}, "all": {"type": "boolean"}},
    "required": ["days", "all"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "W.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "count_days", "description": "D.", "parameters": OTHER}},
]
SCHEMAS: dict[str, dict[str, Any]] = {"get_weather": PARAMETERS, "count_days": OTHER}
RIGHT, ODD = '{"city": "Paris"}', '{"city": 5}'
THOUGHT, SAID = "I look.", "Done."


def qwen_call(arguments: str) -> str:
    return f'\n{{"name": "get_weather", "arguments": {arguments}}}\n'


BROKEN = '\n{"name": "get_weather", "arguments": {"city": }}\n'
QWEN = {
    "§go": ["<think>", SAID, "<tool_call>"],
    "<think>": [f"\n{THOUGHT}\n"],
    f"\n{THOUGHT}\n": ["</think>"],
    "</think>": ["\n\n"],
    "\n\n": [SAID, "<tool_call>"],
    "<tool_call>": [qwen_call(RIGHT), qwen_call(ODD), BROKEN],
    **{piece: ["</tool_call>"] for piece in (qwen_call(RIGHT), qwen_call(ODD), BROKEN)},
    "</tool_call>": ["\n", "<|im_end|>"],
    "\n": ["<tool_call>"],
    "§json": ["{", SAID],
    "{": ["}"],
    "§think": ["<think>", "<think>"],
    "§on": ["<think>"],
}
HEADER, FINAL = "commentary to=functions.get_weather ", "final"
HARMONY = {
    "§go": ["<|channel|>"],
    "<|channel|>": [HEADER, "analysis", FINAL],
    HEADER: ["<|constrain|>"],
    "<|constrain|>": ["json"],
    "json": ["<|message|>"],
    "analysis": ["<|message|>"],
    FINAL: ["<|message|>"],
    "<|message|>": [RIGHT, THOUGHT, SAID],
    RIGHT: ["<|call|>"],
    THOUGHT: ["<|end|>"],
    "<|end|>": ["<|start|>"],
    "<|start|>": ["assistant"],
    "assistant": ["<|channel|>"],
    SAID: ["<|return|>"],
}
ENDS = {"qwen3": ["<|im_end|>"], "gptoss": ["<|return|>", "<|call|>"]}


class Served(NamedTuple):
    """A client of a started Millrace."""

    client: openai.OpenAI
    pieces: dict[int, str]

    def ask(self, content: str, **options: Any) -> Any:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 1.0, **options}
        return self.client.chat.completions.create(**asked, extra_body={"return_token_ids": True})

    def pieces_of(self, choice: Any) -> list[str]:
        return [self.pieces[number] for number in choice.model_extra["token_ids"]]


def serve_chain(folder: Path, template: str, follows: dict[str, list[str]]) -> Iterator[Served]:
    """Serve such a policy. Its workers do not run: what is answered is not learned here."""
    policy, sockets = build_chain(folder / "policy", template, follows, ENDS[template]), listen(0)
    added = json.loads((policy / "tokenizer.json").read_text())["added_tokens"]
    settings = new_settings(folder / "home", sockets, name=MODEL, base=policy, tasks=[TASK], device="cpu")
    home = prepare_home(settings.model_copy(update={"requests_per_minute": 0}), {})
    with supervised(home, sockets, only_servers=True):
        client = openai.OpenAI(base_url=f"{settings.web_url}/v1", api_key=home.app_key, max_retries=0)
        yield Served(client, {token["id"]: token["content"] for token in added})
        client.close()
