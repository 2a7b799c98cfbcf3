"""The openai SDK for Python, as its users call it. Also run against litellm's proxy in front of Millrace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
from cases import (
    BIASES,
    BOOKING_SCHEMA,
    EITHER_CITY,
    KEY,
    MODEL,
    PIXEL,
    SPENT_KEY,
    THROUGH_PROXY,
    URL,
    WEATHER,
    Refused,
    case,
    is_biased,
    reach_the_limit,
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
    code = error.code or type(error).__name__  # litellm's proxy gives none to some errors
    return Refused(error.status_code, code, error.param or "", error.message)


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
    same((calls_of(choice.message), choice.message.content), ([], "I cannot see the weather."))


@case("tools: required")
def tools_required() -> None:
    for choice in ask(
        "Do as you like.", tools=[EITHER_CITY], tool_choice="required", n=6
    ).choices:  # half would be words
        called = calls_of(choice.message)
        true(called, "a call")
        true(all(call[0] == "get_weather" and call[1].keys() == {"city"} for call in called), called)
        true(all(call[1]["city"] in ("Paris", "Rome") for call in called), called)


@case("tools: named")
def tools_named() -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = ask("What is the weather in Paris?", tools=[WEATHER], tool_choice=named).choices[0]
    same(calls_of(choice.message), [("get_weather", {"city": "Paris"})])


@case("tools: strict")
def tools_strict() -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    answer = ask("What is the weather in Paris?", tools=[strict])
    same(calls_of(answer.choices[0].message), [("get_weather", {"city": "Paris"})])
    if not THROUGH_PROXY:  # nothing limited its tokens, so it can be trained on
        same(answer.model_extra["sampling"]["constraint"], "")


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
    answer = ask("How are you?", response_format={"type": "json_object"}, n=6)  # half would be words
    true(all(isinstance(json.loads(choice.message.content), dict) for choice in answer.choices), "objects")


@case("json_schema")
def json_schema() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "booking", "schema": BOOKING_SCHEMA, "strict": True}}
    same(json.loads(text("Book a table for four, Anna.", response_format=shape)), {"name": "Anna", "party": 4})
    moods = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    answer = ask(
        "How are you?", response_format={"type": "json_schema", "json_schema": {"name": "m", "schema": moods}}, n=6
    )
    for choice in answer.choices:
        true(json.loads(choice.message.content)["mood"] in ("good", "bad"), choice.message.content)


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


@case("logit_bias")
def logit_bias() -> None:
    is_biased(*(text("Say hello.", logit_bias=bias, max_tokens=3) for bias in BIASES))


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
    asked: Any = {"model": MODEL, "prompt": "one two three"}
    answer: Any = client.completions.create(**asked, max_tokens=4)
    same((answer.object, answer.usage.completion_tokens), ("text_completion", 4))
    same((answer.choices[0].text[:5], answer.choices[0].finish_reason), (" four", "length"))
    pieces: Any = list(client.completions.create(**asked, max_tokens=80, stream=True))
    written = "".join(piece.choices[0].text or "" for piece in pieces if piece.choices)
    same(written, " four five six seven eight nine ten")
    same([piece.choices[0].finish_reason for piece in pieces if piece.choices][-1], "stop")


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
    kept = ask("Say hello.", store=True, metadata={"page": "clients"})
    same(soon(lambda: chat.retrieve(kept.id)).choices[0].message.content, "Hello, nice to see you.")
    true(kept.id in [one.id for one in chat.list(limit=20, order="desc")], "it is listed")
    same([message.content for message in chat.messages.list(kept.id)], ["Say hello."])


@case("metadata, store, user")
def labels() -> None:
    kept = ask("Say hello.", metadata={"session_id": "s-1"}, store=True, user="anna", safety_identifier="a")
    if not THROUGH_PROXY:
        same(soon(lambda: chat.retrieve(kept.id)).metadata, {"session_id": "s-1"})


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


FLAT_WEATHER: Any = {"type": "function", **WEATHER["function"], "strict": False}
responses: Any = client.responses


def flat_calls_of(answer: Any) -> list[tuple[str, Any]]:
    """Names and arguments of its calls."""
    return [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]


def results_of(answer: Any) -> list[dict[str, Any]]:
    """What its calls gave."""
    called = [item for item in answer.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": item.call_id, "output": '{"degrees": 21}'} for item in called]


@case("responses API")
def responses_plain() -> None:
    answer = responses.create(model=MODEL, input="Say hello.")
    same((answer.output_text, answer.status), ("Hello, nice to see you.", "completed"))
    same(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)


@case("responses API: streamed")
def responses_streamed() -> None:
    with responses.stream(model=MODEL, input="Say hello.") as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    same((said, final.output_text), ("Hello, nice to see you.", "Hello, nice to see you."))


@case("responses API: instructions")
def responses_instructions() -> None:
    answer = responses.create(model=MODEL, instructions="Answer in capitals.", input="Say hello.")
    same(answer.output_text, "HELLO, NICE TO SEE YOU.")


@case("responses API: tools, results sent back")
def responses_tools() -> None:
    asked = user("What is the weather in Paris?")
    first = responses.create(model=MODEL, input=asked, tools=[FLAT_WEATHER])
    same(flat_calls_of(first), [("get_weather", {"city": "Paris"})])
    second = responses.create(model=MODEL, input=[*asked, *first.output, *results_of(first)], tools=[FLAT_WEATHER])
    same(second.output_text, "It is 21 degrees in Paris.")


@case("responses API: several calls, streamed")
def responses_calls() -> None:
    asked = "What is the weather in Paris and in Rome?"
    with responses.stream(model=MODEL, input=asked, tools=[FLAT_WEATHER]) as stream:
        final = stream.until_done().get_final_response()
    same(flat_calls_of(final), [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})])


@case("responses API: previous_response_id")
def responses_previous() -> None:
    first = responses.create(model=MODEL, input="What is the weather in Paris?", tools=[FLAT_WEATHER])
    asked = {"model": MODEL, "input": results_of(first), "tools": [FLAT_WEATHER]}
    second = responses.create(**asked, previous_response_id=first.id)
    same(second.output_text, "It is 21 degrees in Paris.")
    if not THROUGH_PROXY:  # which gives responses ids of its own
        same(second.previous_response_id, first.id)


@case("responses API: parse() into a pydantic model")
def responses_parsed() -> None:
    answer = responses.parse(model=MODEL, input="Book a table for four, Anna.", text_format=Booking)
    same(answer.output_parsed, Booking(name="Anna", party=4))


@case("responses API: reasoning items")
def responses_reasoning() -> None:
    answer = responses.create(model=MODEL, input="Think: two and two?")
    same([item.type for item in answer.output], ["reasoning", "message"])
    same((answer.output[0].content[0].text.strip(), answer.output_text), ("Two and two make four.", "Four."))


@case("responses API: max_output_tokens")
def responses_cut() -> None:
    answer = responses.create(model=MODEL, input="Count.", max_output_tokens=2)
    same((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))


@case("responses API: retrieve, input items")
def responses_kept() -> None:
    answer = responses.create(model=MODEL, input="Say hello.", store=True)
    same(responses.retrieve(answer.id).output_text, answer.output_text)
    same([item.content[0].text for item in responses.input_items.list(answer.id)], ["Say hello."])


@case("responses API: feedback by its id")
def responses_feedback() -> None:
    if THROUGH_PROXY:
        raise Refused("not sent", "", "", "the proxy has no such route")
    answer = responses.create(model=MODEL, input="Say hello.")
    signal = {"name": "accepted", "value": True, "completion_id": answer.id}
    taken: Any = client.post("/feedback", cast_to=object, body=signal)
    kept: Any = client.get(f"/feedback/{taken['id']}", cast_to=object)
    same(kept["completion_id"], answer.completion_id)


@case("responses API: hosted tool")
def responses_hosted() -> None:
    responses.create(model=MODEL, input="Say hello.", tools=[{"type": "web_search"}])


@case("idempotency key")
def idempotency() -> None:
    headers = {"Idempotency-Key": f"openai-{openai.__version__}-{URL}"}
    first, again = (ask("Roll a die.", extra_headers=headers) for _ in range(2))
    if THROUGH_PROXY and again.id != first.id:
        raise Refused("not sent", "", "", "the proxy does not pass the header on: there are two answers")
    same(again.id, first.id)


@case("a stream that the client leaves")
def leave() -> None:
    stream = ask("Count.", stream=True)
    next(iter(stream))
    stream.close()
    plain()


@case("429, then a retry by the client")
def rate_limit() -> None:
    spent: Any = client.with_options(api_key=SPENT_KEY)
    asked: dict[str, Any] = {"model": MODEL, "messages": user("Say hello."), "max_tokens": 1}
    reach_the_limit(lambda: spent.chat.completions.create(**asked), openai.RateLimitError)
    spent.with_options(max_retries=4).chat.completions.create(**asked)


if __name__ == "__main__":
    run_all(refusal_of)
