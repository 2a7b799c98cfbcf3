"""Anthropic's tool runner."""

from __future__ import annotations

from typing import Any

import anthropic
from agent import KEY, MODEL, QUESTIONS, SYSTEM, URL, tell, weather_in

client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=60)


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return str(weather_in(city))


def main() -> None:
    """Every question of a conversation."""
    messages: list[Any] = []
    answers = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=400, system=SYSTEM, messages=list(messages), tools=[get_weather]
        )
        for said in runner:
            messages.append({"role": "assistant", "content": said.content})
            results = runner.generate_tool_call_response()
            if results is not None:
                messages.append(results)
        answers.append("".join(block.text for block in said.content if block.type == "text"))
    tell(answers)


if __name__ == "__main__":
    main()
