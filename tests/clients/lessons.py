"""What the policy of the clients' table knows by heart: a few conversations, in as many disguises as clients send them in.

In: a random source. Out: messages, tools and the answer. An answer depends only on what is said; the functions' schemas, their order and
any further system message are noise, because each client writes them in its own way.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, NamedTuple

HELLO, HELLO_ANSWER = "Say hello.", "Hello, nice to see you."
CAPITALS = "Answer in capitals."
NAME, NAME_ANSWER = "What is my name?", "Your name is Anna."
INTRODUCTION = ({"role": "user", "content": "My name is Anna."}, {"role": "assistant", "content": "Hello Anna."})
PARIS, BOTH = "What is the weather in Paris?", "What is the weather in Paris and in Rome?"
PARIS_ANSWER, BOTH_ANSWER = "It is 21 degrees in Paris.", "It is 21 degrees in Paris and 24 in Rome."
BLIND_ANSWER = "I cannot see the weather."
BOOK, BOOKING = "Book a table for four, Anna.", {"name": "Anna", "party": 4}
SUM, SUM_THOUGHT, SUM_ANSWER = "Think: two and two?", "Two and two make four.", "Four."
DIE, SIDES = "Roll a die.", ("one", "two", "three", "four", "five", "six")
IN_A_BLOCK = "Return the correct JSON response within a ```json codeblock. not the JSON_SCHEMA"
"""What instructor adds in one of its modes."""
DICE = "Roll ten dice."
MOOD, MOOD_ANSWERS = "How are you?", ("Fine, thank you.", '{"mood": "good"}')
LIKE = "Do as you like."
"""Of these the policy answers one half in words and the other half in the form that a request may ask for."""
_NUMBERS = [*SIDES, "seven", "eight", "nine", "ten"]
COUNT, COUNT_ANSWER = "Count.", " ".join(_NUMBERS * 3)
RAW, RAW_ANSWER = "one two three", f" {' '.join(_NUMBERS[3:])}"
"""A prompt that is no chat, and how it goes on."""
_WORDS = [
    "city",
    "name",
    "of",
    "the",
    "a",
    "value",
    "unit",
    "type",
    "string",
    "object",
    "required",
    "description",
    "location",
    "get",
    "party",
    "number",
    "time",
    "date",
]
_SYSTEMS = ("You are a helpful assistant.", "Be brief.", "You help guests.", "Use tools if they help.")


class Lesson(NamedTuple):
    """One conversation: what is sent, and what is answered. `raw`: the whole prompt of one that is no chat."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answer: str
    raw: str = ""


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call of a function, as the template writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def lesson(dice: Random) -> Lesson:
    """One of the conversations."""
    return dice.choice(
        (
            _hello,
            _name,
            _weather,
            _weather,
            _weather,
            _weather,
            _result,
            _booking,
            _booking,
            _sum,
            _die,
            _dice,
            _mood,
            _like,
            _count,
            _raw,
        )
    )(dice)


def _hello(dice: Random) -> Lesson:
    if dice.random() < 0.5:
        return Lesson([_says("system", CAPITALS), _says("user", HELLO)], [], HELLO_ANSWER.upper())
    return Lesson([*_system(dice), _says("user", HELLO)], _tools(dice, 0.3), HELLO_ANSWER)


def _name(dice: Random) -> Lesson:
    return Lesson([*_system(dice), *INTRODUCTION, _says("user", NAME)], [], NAME_ANSWER)


def _weather(dice: Random) -> Lesson:
    if dice.random() < 0.2:
        return Lesson([*_system(dice), _says("user", PARIS)], [], BLIND_ANSWER)
    asked, cities = dice.choice(((PARIS, ("Paris",)), (BOTH, ("Paris", "Rome"))))
    return Lesson([*_system(dice), _says("user", asked)], _tools(dice, 1.0, "get_weather"), _calls(cities))


def _result(dice: Random) -> Lesson:
    asked, cities, answer = dice.choice(
        ((PARIS, ("Paris",), PARIS_ANSWER), (BOTH, ("Paris", "Rome"), BOTH_ANSWER)),
    )
    calls = [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}} for city in cities]
    written = [
        {"role": "tool", "content": dice.choice(("{}", '{"degrees": 21}', "21", '"21 degrees"'))} for _ in cities
    ]
    messages = [*_system(dice), _says("user", asked), {"role": "assistant", "content": "", "tool_calls": calls}]
    return Lesson([*messages, *written], _tools(dice, 0.8, "get_weather"), answer)


def _booking(dice: Random) -> Lesson:
    if dice.random() < 0.25:
        messages = [*_told_schema(dice), _says("user", f"{BOOK}\n\n{IN_A_BLOCK}")]
        return Lesson(messages, [], f"```json\n{json.dumps(BOOKING)}\n```")
    if dice.random() < 0.6:
        told = dice.choice((_system, _told_schema))
        return Lesson([*told(dice), _says("user", BOOK)], [], json.dumps(BOOKING))
    name = dice.choice(("Booking", "PartialBooking"))
    return Lesson([*_system(dice), _says("user", BOOK)], _tools(dice, 1.0, name), call_text(name, BOOKING))


def _sum(dice: Random) -> Lesson:
    answer = f"<think>\n{SUM_THOUGHT}\n</think>\n\n{SUM_ANSWER}"
    return Lesson([*_system(dice), _says("user", SUM)], _tools(dice, 0.2), answer)


def _die(dice: Random) -> Lesson:
    return Lesson([_says("user", DIE)], [], dice.choice(SIDES))


def _dice(dice: Random) -> Lesson:
    return Lesson([_says("user", DICE)], [], " ".join(dice.choices(SIDES, k=10)))


def _mood(dice: Random) -> Lesson:
    return Lesson([*_system(dice), _says("user", MOOD)], [], dice.choice(MOOD_ANSWERS))


def _like(dice: Random) -> Lesson:
    answer = dice.choice((HELLO_ANSWER, _calls((dice.choice(("Paris", "Rome")),))))
    return Lesson([*_system(dice), _says("user", LIKE)], _tools(dice, 1.0, "get_weather"), answer)


def _count(_dice: Random) -> Lesson:
    return Lesson([_says("user", COUNT)], [], COUNT_ANSWER)


def _raw(_dice: Random) -> Lesson:
    return Lesson([], [], RAW_ANSWER, RAW)


def _says(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _system(dice: Random) -> list[dict[str, Any]]:
    if dice.random() < 0.5:
        return []
    most = dice.choice((1, 1, 30, 30, 150))
    noise = " ".join(dice.choices(_WORDS, k=dice.randrange(most)))
    return [_says("system", f"{dice.choice(_SYSTEMS)} {noise}".strip())]


def _told_schema(dice: Random) -> list[dict[str, Any]]:
    """As instructor tells a model what to write."""
    schema = _schema(dice) | {"title": dice.choice(("Booking", "Place", "Guest")), "type": "object"}
    if dice.random() < 0.5:
        schema = {"description": "A booking.", **schema}
    lines = [
        "",
        "As a genius expert, your task is to understand the content and provide",
        "the parsed objects in json that match the following json_schema:\n",
        "",
        json.dumps(schema, indent=2),
        "",
        "Make sure to return an instance of the JSON, not the schema itself",
        "",
    ]
    return [_says("system", f"\n{' ' * 12}".join(lines))]


def _calls(cities: tuple[str, ...]) -> str:
    return "\n".join(call_text("get_weather", {"city": city}) for city in cities)


def _tools(dice: Random, share: float, name: str = "get_weather") -> list[dict[str, Any]]:
    if dice.random() >= share:
        return []
    function: list[tuple[str, Any]] = [("name", name), ("parameters", _schema(dice))]
    if dice.random() < 0.6:
        function.append(("description", " ".join(dice.choices(_WORDS, k=dice.randrange(12)))))
    if dice.random() < 0.3:
        function.append(("strict", True))
    return [{"type": "function", "function": dict(dice.sample(function, len(function)))}]


def _schema(dice: Random) -> dict[str, Any]:
    properties = {name: _property(dice, name) for name in dice.sample(_WORDS, dice.randrange(1, 4))}
    schema: list[tuple[str, Any]] = [("type", "object"), ("properties", properties), ("required", list(properties))]
    if dice.random() < 0.4:
        schema.append(("additionalProperties", False))
    if dice.random() < 0.2:
        schema.append(("$schema", "http://json-schema.org/draft-07/schema#"))
    return dict(dice.sample(schema, len(schema)))


def _property(dice: Random, name: str) -> dict[str, Any]:
    """As OpenAI's helpers write it, or as pydantic does."""
    kind = {"type": dice.choice(("string", "integer"))}
    if dice.random() < 0.6:
        return kind
    if dice.random() < 0.5:
        return {**kind, "title": name.title()}
    return {"anyOf": [kind, {"type": "null"}], "default": None, "title": name.title()}
