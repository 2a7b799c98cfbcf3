"""The OpenAI Agents SDK, as its users call it: it speaks the Responses API unless it is told otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from cases import KEY, MODEL, URL, Refused, case, run_all, same, true
from pydantic import BaseModel

set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
set_default_openai_client(client, use_for_tracing=False)
LOOP = asyncio.new_event_loop()
"""One for all cases: the client keeps its connections."""
PARIS, BOTH = "What is the weather in Paris?", "What is the weather in Paris and in Rome?"
PARIS_ANSWER, BOTH_ANSWER = "It is 21 degrees in Paris.", "It is 21 degrees in Paris and 24 in Rome."


class Booking(BaseModel):
    """A booking."""

    name: str
    party: int


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return {"Paris": "21", "Rome": "24"}[city]


def agent_of(**options: Any) -> Any:
    """An agent."""
    return Agent(**{"name": "guide", "instructions": "You help guests.", "model": MODEL, **options})


def run(agent: Any, content: Any, **options: Any) -> Any:
    """One run to its end."""
    return LOOP.run_until_complete(Runner.run(agent, content, **options))


def refusal_of(error: Exception) -> Refused | None:
    """It raises the openai SDK's own exceptions."""
    if not isinstance(error, openai.APIStatusError):
        return None
    return Refused(error.status_code, error.code or "", error.param or "", error.message)


@case("plain answer")
def plain() -> None:
    same(run(agent_of(), "Say hello.").final_output, "Hello, nice to see you.")


@case("streamed answer")
def streamed() -> None:
    async def follow() -> tuple[str, str]:
        result = Runner.run_streamed(agent_of(), "Say hello.")
        said = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                said += event.data.delta
        return said, result.final_output

    same(LOOP.run_until_complete(follow()), ("Hello, nice to see you.",) * 2)


@case("a tool and its result")
def loop() -> None:
    result = run(agent_of(tools=[get_weather]), PARIS)
    same((result.final_output, len(result.raw_responses)), (PARIS_ANSWER, 2))


@case("two calls at once")
def both() -> None:
    result = run(agent_of(tools=[get_weather]), BOTH)
    same((result.final_output, len(result.raw_responses)), (BOTH_ANSWER, 2))


@case("two calls at once, streamed")
def both_streamed() -> None:
    async def follow() -> tuple[list[str], str]:
        result = Runner.run_streamed(agent_of(tools=[get_weather]), BOTH)
        names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        return names, result.final_output

    names, output = LOOP.run_until_complete(follow())
    same(output, BOTH_ANSWER)
    same((names.count("tool_called"), names.count("tool_output")), (2, 2))


@case("auto_previous_response_id")
def previous() -> None:
    result = run(agent_of(tools=[get_weather]), PARIS, auto_previous_response_id=True)
    same((result.final_output, len(result.raw_responses)), (PARIS_ANSWER, 2))


@case("a second turn: to_input_list()")
def turns() -> None:
    first = run(agent_of(tools=[get_weather]), PARIS)
    second = run(agent_of(tools=[get_weather]), [*first.to_input_list(), {"role": "user", "content": PARIS}])
    true(second.final_output, "an answer")


@case("a session of the SDK")
def session() -> None:
    async def talk() -> int:
        kept = SQLiteSession("guest")
        await Runner.run(agent_of(tools=[get_weather]), PARIS, session=kept)
        await Runner.run(agent_of(tools=[get_weather]), "Say hello.", session=kept)
        return len(await kept.get_items())

    same(LOOP.run_until_complete(talk()), 6)


@case("output_type")
def output_type() -> None:
    same(run(agent_of(output_type=Booking), "Book a table for four, Anna.").final_output, Booking(name="Anna", party=4))


@case("tool_choice: required")
def required() -> None:
    agent = agent_of(tools=[get_weather], model_settings=ModelSettings(tool_choice="required"))
    same(run(agent, PARIS).final_output, PARIS_ANSWER)


@case("reasoning items")
def reasoning() -> None:
    result = run(agent_of(), "Think: two and two?")
    same(result.final_output, "Four.")
    same([item.type for item in result.new_items], ["reasoning_item", "message_output_item"])


@case("chat completions, a tool and its result")
def chats() -> None:
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    same(run(agent_of(model=model, tools=[get_weather]), PARIS).final_output, PARIS_ANSWER)


@case("hosted tool")
def hosted() -> None:
    from agents import WebSearchTool  # noqa: PLC0415 only here

    run(agent_of(tools=[WebSearchTool()]), "Say hello.")


@case("unknown model")
def unknown_model() -> None:
    run(agent_of(model="gpt-none"), "Say hello.")


@case("wrong key")
def wrong_key() -> None:
    set_default_openai_client(client.with_options(api_key="sk-wrong"), use_for_tracing=False)
    try:
        run(agent_of(), "Say hello.")
    finally:
        set_default_openai_client(client, use_for_tracing=False)


if __name__ == "__main__":
    run_all(refusal_of)
