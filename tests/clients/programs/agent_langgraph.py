"""LangGraph's prebuilt agent with a checkpointer, by chats or by the Responses API."""

from __future__ import annotations

from typing import Any

from agent import API, KEY, MODEL, QUESTIONS, SYSTEM, URL, tell, weather_in
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return str(weather_in(city))


def main() -> None:
    """Every question of a conversation."""
    model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, use_responses_api=API == "responses")
    agent: Any = create_react_agent(model, [get_weather], prompt=SYSTEM, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "t"}}
    states = [
        agent.invoke({"messages": [{"role": "user", "content": question}]}, thread)["messages"]
        for question in QUESTIONS
    ]
    tell([state[-1].text for state in states])


if __name__ == "__main__":
    main()
