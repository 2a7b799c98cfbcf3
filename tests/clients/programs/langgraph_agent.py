"""LangGraph's prebuilt agent over langchain-openai, by chats and by the Responses API, as its users call it."""

from __future__ import annotations

from typing import Any

import openai
from cases import KEY, MODEL, URL, Refused, case, run_all, same, true
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

PARIS, BOTH = "What is the weather in Paris?", "What is the weather in Paris and in Rome?"
ANSWERS = {PARIS: "It is 21 degrees in Paris.", BOTH: "It is 21 degrees in Paris and 24 in Rome."}
APIS = {"chats": False, "responses API": True}


class Booking(BaseModel):
    """A booking."""

    name: str
    party: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return {"Paris": "21", "Rome": "24"}[city]


def refusal_of(error: Exception) -> Refused | None:
    """It raises the openai SDK's own exceptions."""
    if not isinstance(error, openai.APIStatusError):
        return None
    return Refused(error.status_code, error.code or "", error.param or "", error.message)


def agent_of(use_responses_api: bool, **options: Any) -> Any:
    """An agent with a tool."""
    key = options.pop("api_key", KEY)
    model = ChatOpenAI(
        model=MODEL, base_url=URL, api_key=key, max_retries=0, use_responses_api=use_responses_api, temperature=0
    )
    return create_react_agent(model, [get_weather], **options)


def asked(content: str) -> dict[str, Any]:
    """The state that begins a run."""
    return {"messages": [{"role": "user", "content": content}]}


def add_cases(api: str, use_responses_api: bool) -> None:
    """The same cases for each API."""

    @case(f"{api}: a tool and its result")
    def loop() -> None:
        said = agent_of(use_responses_api).invoke(asked(PARIS))["messages"]
        same([message.type for message in said], ["human", "ai", "tool", "ai"])
        same(said[-1].text, ANSWERS[PARIS])

    @case(f"{api}: two calls at once")
    def both() -> None:
        said = agent_of(use_responses_api).invoke(asked(BOTH))["messages"]
        same([message.type for message in said], ["human", "ai", "tool", "tool", "ai"])
        same(said[-1].text, ANSWERS[BOTH])

    @case(f"{api}: streamed")
    def streamed() -> None:
        pieces = list(agent_of(use_responses_api).stream(asked(BOTH), stream_mode="messages"))
        texts = [piece.text for piece, _ in pieces if piece.type == "AIMessageChunk"]
        true("".join(texts).endswith(ANSWERS[BOTH]), texts)
        true(len([text for text in texts if text]) > 1, "pieces")

    @case(f"{api}: a second turn, from a checkpoint")
    def turns() -> None:
        made = agent_of(use_responses_api, checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "t"}}
        made.invoke(asked(PARIS), thread)
        said = made.invoke(asked("Say hello."), thread)["messages"]
        same(len(said), 6)

    @case(f"{api}: wrong key")
    def wrong_key() -> None:
        agent_of(use_responses_api, api_key="sk-wrong").invoke(asked(PARIS))


for name, responses in APIS.items():
    add_cases(name, responses)


if __name__ == "__main__":
    run_all(refusal_of)
