"""LangChain's ChatOpenAI and an agent, as their users call them."""

from __future__ import annotations

from typing import Any, Literal

import openai
from cases import (
    BIASES,
    KEY,
    MODEL,
    PIXEL,
    SPENT_KEY,
    URL,
    Refused,
    case,
    is_biased,
    reach_the_limit,
    run_all,
    same,
    true,
)
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel


class Booking(BaseModel):
    """A booking."""

    name: str
    party: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return {"Paris": "21", "Rome": "24"}[city]


@tool("get_weather")
def ask_either(city: Literal["Paris", "Rome"]) -> str:
    """The weather in one of two cities."""
    return city


def model_of(**options: Any) -> Any:
    """A chat model."""
    return ChatOpenAI(**{"model": MODEL, "base_url": URL, "api_key": KEY, "max_retries": 0, **options})


model = model_of()
WEATHER_CALL = [("get_weather", {"city": "Paris"})]


def refusal_of(error: Exception) -> Refused | None:
    """LangChain raises the openai SDK's own exceptions."""
    if not isinstance(error, openai.APIStatusError):
        return None
    return Refused(error.status_code, error.code or "", error.param or "", error.message)


def calls_of(message: Any) -> list[tuple[str, Any]]:
    """Names and arguments of its calls."""
    return [(call["name"], call["args"]) for call in message.tool_calls]


@case("plain answer")
def plain() -> None:
    answer = model.invoke("Say hello.")
    same(answer.content, "Hello, nice to see you.")
    true(answer.usage_metadata["output_tokens"] > 0, "usage")


@case("streamed answer")
def streamed() -> None:
    same("".join(chunk.content for chunk in model.stream("Say hello.")), "Hello, nice to see you.")


@case("usage in the stream")
def usage() -> None:
    told = [chunk.usage_metadata for chunk in model_of(stream_usage=True).stream("Say hello.") if chunk.usage_metadata]
    true(told and told[-1]["output_tokens"] > 0, "usage")


@case("system message")
def system() -> None:
    answer = model.invoke([SystemMessage("Answer in capitals."), HumanMessage("Say hello.")])
    same(answer.content, "HELLO, NICE TO SEE YOU.")


@case("several turns")
def turns() -> None:
    messages = [HumanMessage("My name is Anna."), AIMessage("Hello Anna."), HumanMessage("What is my name?")]
    same(model.invoke(messages).content, "Your name is Anna.")


@case("tools: auto")
def tools_auto() -> None:
    same(calls_of(model.bind_tools([get_weather]).invoke("What is the weather in Paris?")), WEATHER_CALL)


@case("tools: none")
def tools_none() -> None:
    bound = model.bind_tools([get_weather], tool_choice="none")
    answer = bound.invoke("What is the weather in Paris?")
    same((calls_of(answer), answer.content), ([], "I cannot see the weather."))


@case("tools: required")
def tools_required() -> None:
    bound = model.bind_tools([ask_either], tool_choice="any")
    for _ in range(6):  # half would be words
        called = calls_of(bound.invoke("Do as you like."))
        true(called and all(arguments["city"] in ("Paris", "Rome") for _, arguments in called), called)


@case("tools: named")
def tools_named() -> None:
    bound = model.bind_tools([get_weather], tool_choice="get_weather")
    same(calls_of(bound.invoke("What is the weather in Paris?")), WEATHER_CALL)


@case("tools: strict")
def tools_strict() -> None:
    same(calls_of(model.bind_tools([get_weather], strict=True).invoke("What is the weather in Paris?")), WEATHER_CALL)


@case("tools: several calls")
def tools_parallel() -> None:
    answer = model.bind_tools([get_weather]).invoke("What is the weather in Paris and in Rome?")
    same(calls_of(answer), [*WEATHER_CALL, ("get_weather", {"city": "Rome"})])


@case("tools: parallel_tool_calls=False")
def tools_single() -> None:
    bound = model.bind_tools([get_weather], parallel_tool_calls=False)
    same(calls_of(bound.invoke("What is the weather in Paris and in Rome?")), WEATHER_CALL)


@case("tools: result sent back")
def tools_result() -> None:
    bound, asked = model.bind_tools([get_weather]), HumanMessage("What is the weather in Paris?")
    answer = bound.invoke([asked])
    result = ToolMessage('{"degrees": 21}', tool_call_id=answer.tool_calls[0]["id"])
    same(bound.invoke([asked, answer, result]).content, "It is 21 degrees in Paris.")


@case("tools: streamed deltas")
def tools_streamed() -> None:
    chunks = list(model.bind_tools([get_weather]).stream("What is the weather in Paris?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    same(calls_of(whole), WEATHER_CALL)


@case("an agent with a tool")
def agent() -> None:
    made: Any = create_agent(model, tools=[get_weather])
    said = made.invoke({"messages": [{"role": "user", "content": "What is the weather in Paris?"}]})["messages"]
    same(said[-1].content, "It is 21 degrees in Paris.")
    same([type(message).__name__ for message in said], ["HumanMessage", "AIMessage", "ToolMessage", "AIMessage"])


@case("an agent with a tool, streamed")
def agent_streamed() -> None:
    made: Any = create_agent(model, tools=[get_weather])
    asked = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
    pieces = [piece for piece, _ in made.stream(asked, stream_mode="messages") if piece.type == "AIMessageChunk"]
    true("".join(piece.text for piece in pieces).endswith("It is 21 degrees in Paris."), "the last answer is streamed")


@case("with_structured_output: json_schema")
def structured_schema() -> None:
    same(
        model.with_structured_output(Booking, method="json_schema").invoke("Book a table for four, Anna."),
        Booking(name="Anna", party=4),
    )


@case("with_structured_output: function_calling")
def structured_function() -> None:
    same(
        model.with_structured_output(Booking, method="function_calling").invoke("Book a table for four, Anna."),
        Booking(name="Anna", party=4),
    )


@case("with_structured_output: json_mode")
def structured_json() -> None:
    same(
        model.with_structured_output(Booking, method="json_mode").invoke("Book a table for four, Anna."),
        Booking(name="Anna", party=4),
    )


@case("logprobs and top_logprobs")
def logprobs() -> None:
    content = model_of(logprobs=True, top_logprobs=3).invoke("Roll a die.").response_metadata["logprobs"]["content"]
    true(all(len(token["top_logprobs"]) == 3 for token in content), "three for each token")


@case("n=2")
def choices() -> None:
    same(len(model_of(n=2).generate([[HumanMessage("Roll a die.")]]).generations[0]), 2)


@case("seed")
def seed() -> None:
    for number in range(3):
        first, again = (model_of(seed=number, temperature=1.0).invoke("Roll ten dice.").content for _ in range(2))
        same(first, again)


@case("logit_bias")
def logit_bias() -> None:
    is_biased(*(model_of(logit_bias=bias, max_tokens=3).invoke("Say hello.").content for bias in BIASES))


@case("frequency and presence penalty")
def penalties() -> None:
    rolled = model_of(frequency_penalty=2.0, presence_penalty=2.0).invoke("Roll ten dice.").content.split()
    same(len(set(rolled[1:7])), 6)


@case("stop")
def stop() -> None:
    same(model.invoke("Count.", stop=[" three"]).content, "one two")


@case("max_tokens")
def max_tokens() -> None:
    same(model_of(max_tokens=2).invoke("Count.").response_metadata["finish_reason"], "length")


@case("legacy completions")
def legacy() -> None:
    old: Any = OpenAI(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, max_tokens=4, temperature=0)
    same(old.invoke("one two three")[:5], " four")


@case("metadata, store, user")
def labels() -> None:
    extra = {"metadata": {"session_id": "s-4"}, "user": "anna"}
    model_of(store=True, model_kwargs=extra).invoke("Say hello.")


@case("reasoning kept out of the content (the client has no field for it)")
def reasoning() -> None:
    same(model.invoke("Think: two and two?").content, "Four.")


@case("image in a message")
def image() -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    model.invoke([HumanMessage(parts)])


@case("unknown field")
def unknown() -> None:
    model_of(extra_body={"max_token": 3}).invoke("Say hello.")


@case("unknown model")
def unknown_model() -> None:
    model_of(model="gpt-none").invoke("Say hello.")


@case("wrong key")
def wrong_key() -> None:
    model_of(api_key="sk-wrong").invoke("Say hello.")


@case("responses API")
def responses() -> None:
    answer = model_of(use_responses_api=True).invoke("Say hello.")
    same(answer.text, "Hello, nice to see you.")
    true(answer.usage_metadata["output_tokens"] > 0, "usage")


@case("responses API: streamed")
def responses_streamed() -> None:
    chunks = model_of(use_responses_api=True).stream("Say hello.")
    same("".join(chunk.text for chunk in chunks), "Hello, nice to see you.")


@case("responses API: an agent with a tool")
def responses_agent() -> None:
    made: Any = create_agent(model_of(use_responses_api=True), tools=[get_weather])
    said = made.invoke({"messages": [{"role": "user", "content": "What is the weather in Paris?"}]})["messages"]
    same(said[-1].text, "It is 21 degrees in Paris.")


@case("responses API: use_previous_response_id")
def responses_previous() -> None:
    bound = model_of(use_responses_api=True, use_previous_response_id=True).bind_tools([get_weather])
    asked = HumanMessage("What is the weather in Paris?")
    answer = bound.invoke([asked])
    result = ToolMessage("21", tool_call_id=answer.tool_calls[0]["id"])
    same(bound.invoke([asked, answer, result]).text, "It is 21 degrees in Paris.")


@case("responses API: reasoning sent back")
def responses_reasoning() -> None:
    thinker = model_of(use_responses_api=True)
    asked = HumanMessage("Think: two and two?")
    answer = thinker.invoke([asked])
    same(answer.text, "Four.")
    true(any(block["type"] == "reasoning" for block in answer.content), answer.content)
    thinker.invoke([asked, answer, HumanMessage("Say hello.")])


@case("responses API: with_structured_output")
def responses_structured() -> None:
    shaped = model_of(use_responses_api=True).with_structured_output(Booking, method="json_schema")
    same(shaped.invoke("Book a table for four, Anna."), Booking(name="Anna", party=4))


@case("a stream that the client leaves")
def leave() -> None:
    stream = model.stream("Count.")
    next(iter(stream))
    stream.close()
    plain()


@case("429, then a retry by the client")
def rate_limit() -> None:
    spent = model_of(api_key=SPENT_KEY, max_tokens=1)
    reach_the_limit(lambda: spent.invoke("Say hello."), openai.RateLimitError)
    model_of(api_key=SPENT_KEY, max_tokens=1, max_retries=4).invoke("Say hello.")


if __name__ == "__main__":
    run_all(refusal_of)
