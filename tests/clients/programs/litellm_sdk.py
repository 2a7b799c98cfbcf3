"""litellm's own SDK, as its users call it."""

from __future__ import annotations

import json
import re
from typing import Any

import litellm
from cases import (
    BIASES,
    BOOKING_SCHEMA,
    EITHER_CITY,
    KEY,
    MODEL,
    PIXEL,
    SPENT_KEY,
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

litellm.suppress_debug_info = True
PARIS = "What is the weather in Paris?"


def refusal_of(error: Exception) -> Refused | None:
    """Litellm raises its own exceptions; code and param are in the openai error that they wrap, or only in the text."""
    status = getattr(error, "status_code", None)
    if status is None or not type(error).__module__.startswith("litellm"):
        return None
    body = getattr(error, "body", None)
    told = body if isinstance(body, dict) else {}
    code = told.get("code") or next(iter(re.findall(r"'code': '(\w+)'", str(error))), "")
    code = code or type(error).__name__  # it keeps no code of some errors
    return Refused(int(status), str(code), str(told.get("param") or getattr(error, "param", None) or ""), str(error))


def ask(content: Any, **options: Any) -> Any:
    """One answer to one message."""
    options = {"model": f"openai/{MODEL}", "messages": user(content), "api_key": KEY, **options}
    return litellm.completion(api_base=URL, num_retries=0, max_retries=0, **options)


def text(content: Any, **options: Any) -> Any:
    """Its text."""
    return ask(content, **options).choices[0].message.content


def calls_of(message: Any) -> list[tuple[str, Any]]:
    """Names and arguments of its calls."""
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


@case("plain answer")
def plain() -> None:
    same(text("Say hello."), "Hello, nice to see you.")


@case("streamed answer")
def streamed() -> None:
    chunks = list(ask("Say hello.", stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "Hello, nice to see you.")


@case("usage in the stream")
def usage() -> None:
    chunks = list(ask("Say hello.", stream=True, stream_options={"include_usage": True}))
    true(chunks[-1].usage.completion_tokens > 0, "usage")


@case("system message")
def system() -> None:
    messages = [{"role": "system", "content": "Answer in capitals."}, *user("Say hello.")]
    same(text("", messages=messages), "HELLO, NICE TO SEE YOU.")


@case("several turns")
def turns() -> None:
    messages = [*user("My name is Anna."), {"role": "assistant", "content": "Hello Anna."}, *user("What is my name?")]
    same(text("", messages=messages), "Your name is Anna.")


@case("tools: auto")
def tools_auto() -> None:
    same(calls_of(ask(PARIS, tools=[WEATHER]).choices[0].message), [("get_weather", {"city": "Paris"})])


@case("tools: required")
def tools_required() -> None:
    for choice in ask(
        "Do as you like.", tools=[EITHER_CITY], tool_choice="required", n=6
    ).choices:  # half would be words
        called = calls_of(choice.message)
        true(called and all(arguments["city"] in ("Paris", "Rome") for _, arguments in called), called)


@case("tools: several calls")
def tools_parallel() -> None:
    answer = ask("What is the weather in Paris and in Rome?", tools=[WEATHER])
    wanted = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    same(calls_of(answer.choices[0].message), wanted)


@case("tools: result sent back")
def tools_result() -> None:
    message = ask(PARIS, tools=[WEATHER]).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"degrees": 21}'}
    answer = ask("", messages=[*user(PARIS), message, result], tools=[WEATHER])
    same(answer.choices[0].message.content, "It is 21 degrees in Paris.")


@case("tools: streamed deltas")
def tools_streamed() -> None:
    whole: Any = litellm.stream_chunk_builder(list(ask(PARIS, tools=[WEATHER], stream=True)))
    same(calls_of(whole.choices[0].message), [("get_weather", {"city": "Paris"})])


@case("json_object")
def json_object() -> None:
    for choice in ask("How are you?", response_format={"type": "json_object"}, n=6).choices:  # half would be words
        true(isinstance(json.loads(choice.message.content), dict), choice.message.content)


@case("json_schema")
def json_schema() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "booking", "schema": BOOKING_SCHEMA, "strict": True}}
    same(json.loads(text("Book a table for four, Anna.", response_format=shape)), {"name": "Anna", "party": 4})


@case("logprobs and top_logprobs")
def logprobs() -> None:
    content = ask("Roll a die.", logprobs=True, top_logprobs=3).choices[0].logprobs.content
    true(all(len(token.top_logprobs) == 3 for token in content), "three for each token")


@case("n=2")
def choices() -> None:
    same(len(ask("Roll a die.", n=2).choices), 2)


@case("seed")
def seed() -> None:
    for number in range(3):
        same(*(text("Roll ten dice.", seed=number, temperature=1.0) for _ in range(2)))


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
    same(ask("Count.", max_tokens=2).choices[0].finish_reason, "length")


@case("legacy completions")
def legacy() -> None:
    answer: Any = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="one two three", max_tokens=4, api_base=URL, api_key=KEY
    )
    same((answer.choices[0].text[:5], answer.usage.completion_tokens), (" four", 4))


@case("metadata, store, user")
def labels() -> None:
    ask("Say hello.", metadata={"session_id": "s-5"}, store=True, user="anna")


@case("reasoning content")
def reasoning() -> None:
    message = ask("Think: two and two?").choices[0].message
    same((message.content, (message.reasoning_content or "").strip()), ("Four.", "Two and two make four."))


@case("image in a message")
def image() -> None:
    ask([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}])


@case("unknown field")
def unknown() -> None:
    ask("Say hello.", max_token=3)


@case("unknown model")
def unknown_model() -> None:
    ask("Say hello.", model="openai/gpt-none")


@case("wrong key")
def wrong_key() -> None:
    ask("Say hello.", api_key="sk-wrong")


@case("a stream that the client leaves")
def leave() -> None:
    stream = ask("Count.", stream=True)
    next(iter(stream))
    stream.completion_stream.close()
    plain()


@case("429, then a retry by the client")
def rate_limit() -> None:
    reach_the_limit(lambda: ask("Say hello.", api_key=SPENT_KEY, max_tokens=1), litellm.RateLimitError)
    litellm.completion(
        model=f"openai/{MODEL}",
        messages=user("Say hello."),
        api_key=SPENT_KEY,
        api_base=URL,
        max_tokens=1,
        max_retries=4,
    )


if __name__ == "__main__":
    run_all(refusal_of)
