"""A loop of one's own over OpenAI's SDK: chats, or responses that refer to the one before."""

from __future__ import annotations

import json
from typing import Any

import openai
from agent import API, KEY, MODEL, PARAMETERS, QUESTIONS, SYSTEM, URL, tell, weather_in

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60)
FUNCTION = {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS}


def by_chats() -> list[str]:
    """All messages are sent each time."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    answers, tools = [], [{"type": "function", "function": FUNCTION}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            said: Any = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message  # type: ignore[arg-type] # dicts
            messages.append(said)
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                content = weather_in(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        answers.append(said.content)
    return answers


def by_responses() -> list[str]:
    """Only what is new is sent."""
    answers, last, tools = [], None, [{"type": "function", "strict": True, **FUNCTION}]
    for question in QUESTIONS:
        new: Any = question
        while True:
            said: Any = client.responses.create(
                model=MODEL, instructions=SYSTEM, input=new, previous_response_id=last, tools=tools  # type: ignore[arg-type] # dicts
            )  # fmt: skip
            last, calls = said.id, [item for item in said.output if item.type == "function_call"]
            if not calls:
                break
            new = [
                {"type": "function_call_output", "call_id": call.call_id, "output": weather_in(**json.loads(call.arguments))}
                for call in calls
            ]  # fmt: skip
        answers.append(said.output_text)
    return answers


if __name__ == "__main__":
    tell(by_chats() if API == "chats" else by_responses())
