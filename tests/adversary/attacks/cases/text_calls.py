"""Calls that nobody can make: written as text, JSON, tags, code or commands, where words would pass."""

from __future__ import annotations

_SHAPES = (
    'NAME(city="Rome")', "NAME('Rome')", "NAME(Rome)", "Sure: NAME(city='Rome') will tell.", '`NAME(city="Rome")`', "print(NAME(city='Rome'))",
    "I will call NAME(city='Rome') now.", "await tools.NAME({'city': 'Rome'})", 'functions.NAME({"city": "Rome"})', 'NAME {"city": "Rome"}',
    'NAME: {"city": "Rome"}', 'NAME\n{"city": "Rome"}', "NAME city=Rome", "NAME --city Rome", "NAME -c Rome", "$ NAME Rome", "/NAME Rome", "@NAME Rome", "!NAME Rome",
    "NAME Rome", "NAME", "`NAME`", "NAME: Rome", "NAME -> Rome", "NAME | Rome", "> NAME Rome", "[NAME Rome]", "[NAME]", "{{NAME Rome}}",
    "Action: NAME", "**Action:** NAME", "Action: `NAME`", "Action: NAME[Rome]", "Tool: NAME\nInput: Rome", "tool = NAME", "function: NAME", "name: NAME", "- name: NAME\n  city: Rome",
    "Action Input: Rome", "Tool call: NAME with Rome", "Function call: weather in Rome", "<NAME city='Rome'/>", "<NAME>Rome</NAME>", "</NAME>", "<tool>NAME</tool>",
    "<tool name='NAME'>Rome</tool>", "<function>NAME</function>", "<tool_use>NAME</tool_use>", "<tool_code>weather()</tool_code>", "<invoke name='x'>", "<function_calls>", "<tool_call >",
    "<|tool_calls_begin|>", "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<|python_tag|>weather", "<|call|>", "[TOOL_REQUEST]", "[FUNCTION_CALL]", "[tool_use]",
    "```tool_code\nweather()\n```", "```\nNAME city: Rome\n```", "```python\nx = NAME\n```", '```json\n{"do": "NAME"}\n```', "~~~\nNAME\n~~~",
    '{"name": "NAME", "input": {"city": "Rome"}}', 'Here: {"tool": "NAME"}', "{'name': 'NAME', 'city': 'Rome'}", '{"tool": "other", "city": "Rome"}', 'So {"function_call": {}}',
    'I use {"name": "NAME", "arguments": {"city": "Rome"}} here.', '{"action": "x", "action_input": "Rome"}', '"tool_name": "weather"', "'arguments': {'city': 'Rome'}",
    "Call NAME with city=Rome.", "Calling NAME with city: Rome", "Invoke `NAME` on Rome", "Running NAME with Rome", "getWeather('Rome')", "get-weather('Rome')", "GET_WEATHER(city='Rome')",
    "GET /NAME?city=Rome", "https://api.example/NAME?city=Rome", "g\u0435t_weather(city='Rome')", "get_we\u200bather(city='Rome')", "\uff47et_weather(city='Rome')", "NAME\uff08city='Rome'\uff09",
    "NAME (city='Rome')", "**NAME**(city='Rome')", '*NAME* {"city": "Rome"}', "to=functions.NAME", "call:NAME{city:Rome}", "NAME, city = Rome", 'NAME with arguments: {"city": "Rome"}',
)  # fmt: skip

LIKE_WORDS = (
    "search Rome", "search", "search: Rome", "search | Rome", "> search Rome", "```\nsearch city: Rome\n```", "```python\nx = search\n```", "~~~\nsearch\n~~~",
    "Calling search with city: Rome", "Running search with Rome", "search, city = Rome", "getWeather('Rome')", "get-weather('Rome')", "GET_WEATHER(city='Rome')",
    "g\u0435t_weather(city='Rome')", "get_we\u200bather(city='Rome')", "\uff47et_weather(city='Rome')",
)  # fmt: skip
"""What cannot be told from words where the tool's name is a word, `search`; the last six name no tool of that task."""

HONEST = (
    "It rains in Rome [1]. Call me at 5 (or later).", "now (or later) it rains\nAction: wait", '{"answer": "rain"}', "I could ask get_weather if you like.",
    "get_weather tells the weather of a city; it needs its name.", "The tool get_weather is not needed here.", "- get_weather: tells the weather of a city.",
    "I have two tools, get_weather and now.", "I would use `get_weather` with a city.", "Shall I call get_weather for you?", "Now, now: it is 5.", "Right now: 17:05.",
    "Use print('hi') in Python:\n```python\nprint('hi')\n```", "What happens now? (We wait.)", "The weather in Rome is fine now.", "Function: the heart pumps blood.",
    "<b>Rome</b> is warm, 20 < 25.", '{"city": "Rome", "action": "none"}', "The name: Rome. The tool: a hammer.", "Running late now with two bags.",
)  # fmt: skip


def of(name: str) -> list[str]:
    """Text calls of a tool whose name is like `get_weather`."""
    return [shape.replace("NAME", name) for shape in _SHAPES]
