"""The OpenAI Agents SDK with a session of its own, by responses or by chats."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from agent import API, KEY, MODEL, QUESTIONS, SYSTEM, URL, tell, weather_in
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return str(weather_in(city))


async def main() -> None:
    """Every question of a conversation."""
    client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    kind: Any = OpenAIChatCompletionsModel if API == "chats" else OpenAIResponsesModel
    model = kind(model=MODEL, openai_client=client)
    agent = Agent(name="guide", instructions=SYSTEM, model=model, tools=[get_weather])
    kept = SQLiteSession("guest")
    tell([(await Runner.run(agent, question, session=kept)).final_output for question in QUESTIONS])


if __name__ == "__main__":
    asyncio.run(main())
