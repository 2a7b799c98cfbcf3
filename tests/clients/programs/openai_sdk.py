"""The openai SDK for Python, as its users call it. Also run against litellm's proxy in front of Millrace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
from cases import (
    BOOKING_SCHEMA,
    EITHER_CITY,
    KEY,
    MODEL,
    PIXEL,
    REQUESTS_PER_MINUTE,
    SPENT_KEY,
    THROUGH_PROXY,
    URL,
    WEATHER,
    Refused,
    case,
    kept_by_the_proxy,
    run_all,
    same,
    true,
    user,
)
from pydantic import BaseModel

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60)
chat: Any = client.chat.completions
NUMBERS = ("one", "two", "three", "four", "five", "six")


def refusal_of(error: Exception) -> Refused | None:
    """What the SDK made of an error object."""
    if not isinstance(error, openai.APIStatusError):
        return None
    return Refused(error.status_code, error.code or "", error.param or "", error.message)


def ask(content: Any, **options: Any) -> Any:
    """One answer to one message."""
    return chat.create(model=MODEL, messages=user(content), **options)


def text(content: Any, **options: Any) -> str:
    """Its text."""
    return str(ask(content, **options).choices[0].message.content)


@case("plain answer")
def plain() -> None:
    answer = ask("Say hello.")
    same(answer.choices[0].message.content, "Hello, nice to see you.")
    same(answer.choices[0].finish_reason, "stop")
    true(answer.id.startswith("chatcmpl-"), answer.id)
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


@case("streamed answer")
def streamed() -> None:
    chunks = list(ask("Say hello.", stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "Hello, nice to see you.")
    same([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason], ["stop"])


@case("usage in the stream")
def usage() -> None:
    last = list(ask("Say hello.", stream=True, stream_options={"include_usage": True}))[-1]
    true(last.usage.completion_tokens > 0, "the last chunk has the usage")


@case("system message")
def system() -> None:
    messages = [{"role": "system", "content": "Answer in capitals."}, *user("Say hello.")]
    same(chat.create(model=MODEL, messages=messages).choices[0].message.content, "HELLO, NICE TO SEE YOU.")


@case("several turns")
def turns() -> None:
    messages = [*user("My name is Anna."), {"role": "assistant", "content": "Hello Anna."}, *user("What is my name?")]
    same(chat.create(model=MODEL, messages=messages).choices[0].message.content, "Your name is Anna.")


def calls_of(message: Any) -> list[tuple[str, Any]]:
    """Names and arguments of its calls."""
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


@case("tools: auto")
def tools_auto() -> None:
    choice = ask("What is the weather in Paris?", tools=[WEATHER]).choices[0]
    same(calls_of(choice.message), [("get_weather", {"city": "Paris"})])
    same((choice.finish_reason, choice.message.content or None), ("tool_calls", None))


@case("tools: none")
def tools_none() -> None:
    choice = ask("What is the weather in Paris?", tools=[WEATHER], tool_choice="none").choices[0]
    true(not choice.message.tool_calls, "no call")


@case("tools: required")
def tools_required() -> None:
    choice = ask("Do as you like.", tools=[EITHER_CITY], tool_choice="required").choices[0]
    same([name for name, _ in calls_of(choice.message)][:1], ["get_weather"])


@case("tools: named")
def tools_named() -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = ask("What is the weather in Paris?", tools=[WEATHER], tool_choice=named).choices[0]
    same(calls_of(choice.message), [("get_weather", {"city": "Paris"})])


@case("tools: strict")
def tools_strict() -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    choice = ask("What is the weather in Paris?", tools=[strict]).choices[0]
    same(calls_of(choice.message), [("get_weather", {"city": "Paris"})])


@case("tools: several calls")
def tools_parallel() -> None:
    choice = ask("What is the weather in Paris and in Rome?", tools=[WEATHER]).choices[0]
    same(calls_of(choice.message), [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})])
    same(len({call.id for call in choice.message.tool_calls}), 2)


@case("tools: parallel_tool_calls=False")
def tools_single() -> None:
    question = "What is the weather in Paris and in Rome?"
    choice = ask(question, tools=[WEATHER], parallel_tool_calls=False).choices[0]
    same(len(calls_of(choice.message)), 1)


@case("tools: result sent back")
def tools_result() -> None:
    messages = user("What is the weather in Paris?")
    message = chat.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"degrees": 21}'}
    answer = chat.create(model=MODEL, messages=[*messages, message, result], tools=[WEATHER])
    same(answer.choices[0].message.content, "It is 21 degrees in Paris.")


@case("tools: streamed deltas")
def tools_streamed() -> None:
    deltas = [
        call
        for chunk in ask("What is the weather in Paris and in Rome?", tools=[WEATHER], stream=True)
        for call in (chunk.choices[0].delta.tool_calls or [] if chunk.choices else [])
    ]
    for index, city in enumerate(("Paris", "Rome")):
        of_call = [call for call in deltas if call.index == index]
        same([call.function.name for call in of_call if call.function.name], ["get_weather"])
        true(of_call[0].id, "the first delta has the id")
        same(json.loads("".join(call.function.arguments or "" for call in of_call)), {"city": city})


@case("json_object")
def json_object() -> None:
    true(
        isinstance(json.loads(text("Book a table for four, Anna.", response_format={"type": "json_object"})), dict), ""
    )


@case("json_schema")
def json_schema() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "booking", "schema": BOOKING_SCHEMA, "strict": True}}
    same(json.loads(text("Book a table for four, Anna.", response_format=shape)), {"name": "Anna", "party": 4})
    moods = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    forced = text(
        "How are you?", response_format={"type": "json_schema", "json_schema": {"name": "m", "schema": moods}}
    )
    true(json.loads(forced)["mood"] in ("good", "bad"), forced)


class Booking(BaseModel):
    """A booking."""

    name: str
    party: int


@case("parse() into a pydantic model")
def parsed() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=user("Book a table for four, Anna."), response_format=Booking
    )
    same(answer.choices[0].message.parsed, Booking(name="Anna", party=4))


@case("logprobs and top_logprobs")
def logprobs() -> None:
    content = ask("Roll a die.", logprobs=True, top_logprobs=3).choices[0].logprobs.content
    true(all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content), "three for each token")
    true(len({token.logprob for token in content[0].top_logprobs}) > 1, "they differ")


@case("n=2")
def choices() -> None:
    answer = ask("Roll a die.", n=2)
    same([choice.index for choice in answer.choices], [0, 1])
    true(all(choice.message.content in NUMBERS for choice in answer.choices), "two answers")


@case("seed")
def seed() -> None:
    first, again = (
        [text("Roll a die.", seed=number, temperature=1.0) for number in range(8)],
        [text("Roll a die.", seed=number, temperature=1.0) for number in range(8)],
    )
    same(first, again)
    true(len(set(first)) > 1, "seeds differ")


def first_token(word: str) -> str:
    """Its id, read from what the server says of an answer that begins with it."""
    for number in range(40):
        answer = ask("Roll a die.", seed=number, temperature=1.0, extra_body={"return_token_ids": True})
        if answer.choices[0].message.content == word:
            return str(answer.choices[0].model_extra["token_ids"][0])
    raise AssertionError(f"{word} was never rolled")


@case("logit_bias")
def logit_bias() -> None:
    if THROUGH_PROXY:  # it leaves out the token ids of an answer
        ask("Say hello.", logit_bias={"5": -100})
        return
    banned = {first_token(word): -100 for word in ("one", "six")}
    seen = {text("Roll a die.", logit_bias=banned, temperature=1.0) for _ in range(15)}
    true(not seen & {"one", "six"}, f"banned words were said: {seen}")


@case("frequency and presence penalty")
def penalties() -> None:
    rolled = text("Roll ten dice.", frequency_penalty=2.0, presence_penalty=2.0).split()
    same(len(set(rolled[1:7])), 6)  # no side again before each was there; the first has no space before it


@case("stop")
def stop() -> None:
    same(text("Count.", stop=[" three"]), "one two")


@case("max_tokens")
def max_tokens() -> None:
    choice = ask("Count.", max_tokens=2).choices[0]
    same(choice.finish_reason, "length")
    same(ask("Count.", max_completion_tokens=2).usage.completion_tokens, 2)


@case("legacy completions")
def legacy() -> None:
    answer: Any = client.completions.create(model=MODEL, prompt="one two three", max_tokens=4)
    same(answer.object, "text_completion")
    true(0 < answer.usage.completion_tokens <= 4, "a few tokens")
    pieces = list(client.completions.create(model=MODEL, prompt="one two three", max_tokens=4, stream=True))
    true(len(pieces) > 1, "streamed")


@case("models: list and retrieve")
def models() -> None:
    true(MODEL in [model.id for model in client.models.list()], "the model is listed")
    same(client.models.retrieve(MODEL).id, MODEL)


def soon(find: Callable[[], Any]) -> Any:
    """What is found once the record has arrived in the database, which takes a moment."""
    for _ in range(100):
        try:
            return find()
        except openai.NotFoundError:
            time.sleep(0.2)
    return find()


@case("stored completions: list and retrieve")
def stored() -> None:
    kept_by_the_proxy("has no such route")
    kept = ask("Say hello.", store=True, metadata={"page": "clients"})
    same(soon(lambda: chat.retrieve(kept.id)).choices[0].message.content, "Hello, nice to see you.")
    true(kept.id in [one.id for one in chat.list(limit=20, order="desc")], "it is listed")
    same([message.content for message in chat.messages.list(kept.id)], ["Say hello."])


@case("metadata, store, user")
def labels() -> None:
    ask("Say hello.", metadata={"session_id": "s-1"}, store=True, user="anna", safety_identifier="a")


@case("reasoning content")
def reasoning() -> None:
    message = ask("Think: two and two?").choices[0].message
    same(message.content, "Four.")
    extra = message.model_extra or {}
    same((extra.get("reasoning_content") or extra.get("reasoning") or "").strip(), "Two and two make four.")


@case("image in a message")
def image() -> None:
    ask([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}])


@case("unknown field")
def unknown() -> None:
    ask("Say hello.", extra_body={"max_token": 3})


@case("unknown model")
def unknown_model() -> None:
    chat.create(model="gpt-none", messages=user("Say hello."))


@case("wrong key")
def wrong_key() -> None:
    client.with_options(api_key="sk-wrong").models.list()


@case("responses API")
def responses() -> None:
    client.responses.create(model=MODEL, input="Say hello.")


@case("idempotency key")
def idempotency() -> None:
    kept_by_the_proxy("does not pass the header on")
    headers = {"Idempotency-Key": f"openai-{openai.__version__}-{URL}"}
    first, again = (ask("Roll a die.", extra_headers=headers) for _ in range(2))
    same(again.id, first.id)


@case("a stream that the client leaves")
def leave() -> None:
    stream = ask("Count.", stream=True)
    next(iter(stream))
    stream.close()
    plain()


@case("429, then a retry by the client")
def rate_limit() -> None:
    kept_by_the_proxy("is slower than the limit")
    spent: Any = client.with_options(api_key=SPENT_KEY)
    refused = None
    for _ in range(REQUESTS_PER_MINUTE + 20):
        try:
            spent.chat.completions.create(model=MODEL, messages=user("Say hello."), max_tokens=1)
        except openai.RateLimitError as error:
            refused = error
            break
    true(refused is not None, "the limit is never reached")
    patient: Any = spent.with_options(max_retries=4)
    patient.chat.completions.create(model=MODEL, messages=user("Say hello."), max_tokens=1)


if __name__ == "__main__":
    run_all(refusal_of)
