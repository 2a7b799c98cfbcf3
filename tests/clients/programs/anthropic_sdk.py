"""Anthropic's SDK for Python, as its users call it."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from cases import (
    BOOKING_SCHEMA,
    EITHER_CITY,
    KEY,
    MODEL,
    PARAMETERS,
    SPENT_KEY,
    URL,
    Refused,
    case,
    reach_the_limit,
    run_all,
    same,
    true,
    user,
)
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=60)
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "input_schema": PARAMETERS}
EITHER = {"name": "get_weather", "input_schema": EITHER_CITY["function"]["parameters"]}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def refusal_of(error: Exception) -> Refused | None:
    """What the SDK made of an error object."""
    if not isinstance(error, anthropic.APIStatusError) or not isinstance(error.body, dict):
        return None
    told = error.body["error"]
    return Refused(error.status_code, told["code"], told["param"] or "", told["message"])


def ask(content: Any, **options: Any) -> Any:
    """One answer; `content` is the only message, or all messages."""
    messages = content if isinstance(content, list) and "role" in content[0] else user(content)
    return client.messages.create(**{"model": MODEL, "max_tokens": 200, "messages": messages} | options)


def text(content: Any, **options: Any) -> str:
    """The text of its only block."""
    [block] = ask(content, **options).content
    return str(block.text)


def uses_of(message: Any) -> list[tuple[str, Any]]:
    """Names and arguments of its calls."""
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


@case("plain answer")
def plain() -> None:
    answer = ask("Say hello.")
    same([(block.type, block.text) for block in answer.content], [("text", "Hello, nice to see you.")])
    same((answer.type, answer.role, answer.model), ("message", "assistant", MODEL))
    same((answer.stop_reason, answer.stop_sequence), ("end_turn", None))
    same(answer._request_id, answer.id)
    true(answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0, answer.usage)


@case("streamed answer")
def streamed() -> None:
    events = list(ask("Say hello.", stream=True))
    written = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    same(written, "Hello, nice to see you.")
    same((events[0].type, events[1].type), ("message_start", "content_block_start"))
    same([event.type for event in events[-3:]], ["content_block_stop", "message_delta", "message_stop"])
    same((events[-2].delta.stop_reason, events[-2].usage.output_tokens > 0), ("end_turn", True))


@case("messages.stream()")
def helper() -> None:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=user("Say hello.")) as stream:
        same("".join(stream.text_stream), "Hello, nice to see you.")
        final = stream.get_final_message()
    same((final.stop_reason, stream.request_id), ("end_turn", final.id))


@case("system")
def system() -> None:
    same(text("Say hello.", system="Answer in capitals."), "HELLO, NICE TO SEE YOU.")
    blocks = [{"type": "text", "text": "Answer in capitals.", "cache_control": {"type": "ephemeral"}}]
    same(text("Say hello.", system=blocks), "HELLO, NICE TO SEE YOU.")


@case("several turns")
def turns() -> None:
    said = [*user("My name is Anna."), {"role": "assistant", "content": "Hello Anna."}, *user("What is my name?")]
    same(text(said), "Your name is Anna.")


@case("tools: auto")
def tools_auto() -> None:
    answer = ask("What is the weather in Paris?", tools=[WEATHER])
    same((uses_of(answer), answer.stop_reason), ([("get_weather", {"city": "Paris"})], "tool_use"))


@case("tools: none")
def tools_none() -> None:
    same(
        text("What is the weather in Paris?", tools=[WEATHER], tool_choice={"type": "none"}),
        "I cannot see the weather.",
    )


@case("tools: any")
def tools_any() -> None:
    for _ in range(4):  # half would be words
        called = uses_of(ask("Do as you like.", tools=[EITHER], tool_choice={"type": "any"}))
        true(
            called and all(name == "get_weather" and said["city"] in ("Paris", "Rome") for name, said in called), called
        )


@case("tools: named")
def tools_named() -> None:
    choice = {"type": "tool", "name": "get_weather"}
    answer = ask("What is the weather in Paris?", tools=[WEATHER], tool_choice=choice)
    same(uses_of(answer), [("get_weather", {"city": "Paris"})])


@case("tools: several calls")
def tools_parallel() -> None:
    answer = ask("What is the weather in Paris and in Rome?", tools=[WEATHER])
    same(uses_of(answer), [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})])


@case("tools: disable_parallel_tool_use")
def tools_single() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    same(len(uses_of(ask("What is the weather in Paris and in Rome?", tools=[WEATHER], tool_choice=choice))), 1)


@case("tools: result sent back")
def tools_result() -> None:
    said = user("What is the weather in Paris?")
    answer = ask(said, tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": answer.content[-1].id, "content": '{"degrees": 21}'}
    more = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    same(text([*said, *more], tools=[WEATHER]), "It is 21 degrees in Paris.")


@case("tools: tool_runner()")
def tools_runner() -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return json.dumps({"degrees": 21}) if city == "Paris" else "?"

    asked: Any = user("What is the weather in Paris?")
    runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=200, messages=asked, tools=[get_weather])
    [block] = runner.until_done().content
    same(getattr(block, "text", ""), "It is 21 degrees in Paris.")


@case("tools: streamed deltas")
def tools_streamed() -> None:
    asked: Any = user("What is the weather in Paris and in Rome?")
    tools: Any = [WEATHER]
    with client.messages.stream(model=MODEL, max_tokens=200, messages=asked, tools=tools) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    true("input_json" in kinds, kinds)
    same(uses_of(final), [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})])


@case("output_config: json_schema")
def json_schema() -> None:
    shape = {"format": {"type": "json_schema", "schema": BOOKING_SCHEMA}}
    same(json.loads(text("Book a table for four, Anna.", output_config=shape)), {"name": "Anna", "party": 4})


class Booking(BaseModel):
    """A booking."""

    name: str
    party: int


@case("parse() into a pydantic model")
def parsed() -> None:
    asked: Any = user("Book a table for four, Anna.")
    answer = client.messages.parse(model=MODEL, max_tokens=200, messages=asked, output_format=Booking)
    same(answer.parsed_output, Booking(name="Anna", party=4))


@case("thinking")
def thinking() -> None:
    thought, told = ask(
        "Think: two and two?", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1100
    ).content
    same((thought.type, thought.thinking.strip(), told.text), ("thinking", "Two and two make four.", "Four."))


@case("thinking: streamed, and sent back")
def thinking_streamed() -> None:
    asked: Any = user("Think: two and two?")
    with client.messages.stream(model=MODEL, max_tokens=200, messages=asked) as stream:
        thoughts = "".join(event.thinking for event in stream if event.type == "thinking")
        final = stream.get_final_message()
    same(thoughts.strip(), "Two and two make four.")
    same([block.type for block in final.content], ["thinking", "text"])
    ask([*asked, {"role": "assistant", "content": final.content}, *user("Say hello.")])


@case("stop_sequences")
def stops() -> None:
    answer = ask("Count.", stop_sequences=[" three"])
    same((answer.content[0].text, answer.stop_reason, answer.stop_sequence), ("one two", "stop_sequence", " three"))


@case("max_tokens")
def max_tokens() -> None:
    answer = ask("Count.", max_tokens=2)
    same((answer.stop_reason, answer.usage.output_tokens), ("max_tokens", 2))


@case("temperature, top_p, top_k")
def sampling() -> None:
    # The SDK of the newest API version has no such parameters.
    answer = ask("Say hello.", extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5})
    used = answer.model_extra["sampling"]
    same((used["temperature"], used["top_p"], used["top_k"]), (0.5, 0.9, 5))


@case("count_tokens()")
def count() -> None:
    asked: Any = user("What is the weather in Paris?")
    tools: Any = [WEATHER]
    counted = client.messages.count_tokens(model=MODEL, messages=asked, tools=tools, system="Be brief.")
    usage = ask(asked, tools=tools, system="Be brief.").usage
    # An earlier client may have asked the same: what the cache held is told apart from what was read anew.
    same(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0))


@case("models: list and retrieve")
def models() -> None:
    true(MODEL in [model.id for model in client.models.list()], "the model is listed")
    same(client.models.retrieve(MODEL).id, MODEL)


@case("metadata, and a signal about the answer")
def signal() -> None:
    answer = ask(
        "Say hello.", metadata={"user_id": "anna", "session_id": "s-1"}, extra_headers={"x-millrace-task": MODEL}
    )
    item = {"id": answer.id, "completion_id": answer.id, "name": "accepted", "value": True}
    told: Any = client.post("/v1/feedback", body=item, cast_to=object)
    same(told["id"], answer.id)


@case("image in a message")
def image() -> None:
    ask([{"type": "text", "text": "What is this?"}, {"type": "image", "source": PIXEL}])


@case("tool of the server")
def server_tool() -> None:
    ask("Say hello.", tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}])


@case("beginning of an answer")
def prefill() -> None:
    ask([*user("Say hello."), {"role": "assistant", "content": "Hel"}])


@case("unknown field")
def unknown() -> None:
    ask("Say hello.", extra_body={"max_token": 3})


@case("unknown model")
def unknown_model() -> None:
    try:
        ask("Say hello.", model="claude-none")
    except anthropic.NotFoundError as error:
        raise error from None


@case("wrong key")
def wrong_key() -> None:
    try:
        client.with_options(api_key="sk-wrong").models.list()
    except anthropic.AuthenticationError as error:
        raise error from None


@case("idempotency key")
def idempotency() -> None:
    headers = {"Idempotency-Key": f"anthropic-{anthropic.__version__}"}
    same(*(ask("Roll a die.", extra_headers=headers).id for _ in range(2)))


@case("a stream that the client leaves")
def leaving() -> None:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=user("Count.")) as stream:
        next(iter(stream))
    same(text("Say hello."), "Hello, nice to see you.")


@case("429, then a retry by the client")
def limited() -> None:
    spent = client.with_options(api_key=SPENT_KEY)
    asked: Any = {"model": MODEL, "messages": user("Say hello."), "max_tokens": 1}
    reach_the_limit(lambda: spent.messages.create(**asked), anthropic.RateLimitError)
    spent.with_options(max_retries=4).messages.create(**asked)


run_all(refusal_of)
