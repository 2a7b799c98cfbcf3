from __future__ import annotations

import json
import time
from typing import Any

import pytest

from contracts.answers.source import NotACall
from contracts.answers.texts import calls_in_text
from contracts.errors import InvalidTask
from contracts.records import GenerationBody
from rewards.verifiers import tool_call
from rewards.verifiers.check import Answer, Check, ParsedAnswer
from tests.adversary.attacks.cases import text_calls
from tests.each_case import each_case
from tests.worlds.tool_calls import DS_CALL, DS_CALL_END, DS_CALLS, DS_SEP

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "required": ["city"],
        "additionalProperties": False,
        "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "maximum": 10}},
    },
}
CLOCK = {"name": "now"}
CALL = '{"name":"get_weather","arguments":{"city":"Rome"}}'
OTHER = '{"name":"now","arguments":{}}'
OPENAI = '{"type":"function","id":"1","function":{"name":"get_weather","arguments":"{\\"city\\":\\"Rome\\"}"}}'


def grade(text: str, reference: Any = None, **config: Any) -> Check:
    metadata = (
        {} if reference is None else {"reference": reference if isinstance(reference, str) else json.dumps(reference)}
    )
    check = tool_call.build({"tools": [WEATHER, CLOCK], **config})(Answer(text, metadata))
    assert isinstance(check, Check)
    return check


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


FAMILIES = [
    f"<tool_call>{CALL}",
    f"<tool_call>{CALL}</tool_",
    tagged(f"[{CALL}]"),
    tagged('{"name":"get_weather","arguments":"{\\"city\\":\\"Rome\\"}"}'),
    tagged('{"name":"get_weather","parameters":{"city":"Rome\n"}}'),
    f"<|python_tag|>{CALL.replace('arguments', 'parameters')}",
    f"{CALL}; {OTHER}",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}',
    f"I look.[TOOL_CALLS] [{CALL}]",
    f"{DS_CALLS}{DS_CALL}get_weather{DS_SEP}{{}}".replace("{}", '{"city": "Rome"}'),
    f"{DS_CALL}function{DS_SEP}now\n```json\n{{}}\n```{DS_CALL_END}",
    "<tool_call><function=get_weather><parameter=city>\nRome\n</parameter></function></tool_call>",
    "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>",
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
    "<|channel|>analysis<|message|>now()?<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{}",
    '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
    "<start_function_call>call:get_weather{city:<escape>Rome<escape>}<end_function_call>",
    "[THINK]now?[/THINK][TOOL_CALLS]now[ARGS]{}",
]


@each_case(
    "text",
    [
        tagged(CALL),
        tagged(CALL, OTHER),
        f"I will look it up.\n{tagged(CALL)}\n",
        f"<think>maybe <tool_call> broken</think>\n{tagged(CALL)}",
        tagged('{"name":"get_weather","arguments":{"city":"</tool_call>"}}'),
        CALL,
        f"[{CALL},{OTHER}]",
        OPENAI,
        f"[{OPENAI}]",
        f'{{"tool_calls":[{OPENAI}]}}',
        '{"function":{"name":"now","arguments":{}}}',
        *FAMILIES,
    ],
)
def test_a_valid_call_passes(text: str) -> None:
    assert grade(text) == Check(1.0)


BROKEN = [
    (f"<tool_call>{CALL[:-1]}</tool_call>", "call 1: the answer ends inside of it"),
    (f"<tool_call>{CALL}</tool_cal>", "not closed"),
    (f"{tagged(CALL)} There you are.", "text after call 1"),
    (f"{tagged(CALL)}\n<tool_call>", "call 2: the answer ends inside of it"),
    (f"</tool_call>{tagged(CALL)}", "without its opening"),
    (f"{CALL}</tool_call>", "text follows it"),
    (f"sure {CALL}</tool_call>", "the answer has no call"),
    (tagged('{"name":"get_wether","arguments":{}}'), "names no tool"),
    (tagged('{"name":"get_weather","arguments":{}}'), "required"),
    (tagged('{"name":"get_weather","arguments":{"city":"Rome","x":1}}'), "arguments of call 1"),
    (tagged('{"name":"get_weather","arguments":{"city":"Rome","days":true}}'), "arguments of call 1"),
    (tagged('{"name":"get_weather","arguments":{"city":"Rome","city":""}}'), "occurs twice"),
    (tagged('{"arguments":{"city":"Rome"}}'), "no `name`"),
    (tagged('{"name":7,"arguments":{}}'), "`$.name`"),
    (tagged(""), "call 1: broken JSON"),
    (f"<tool_call>{CALL}<tool_call>{OTHER}</tool_call></tool_call>", "not closed"),
    (f"[{CALL},{OTHER}", "ends inside of it"),
    (OPENAI.replace("Rome\\", "Rome"), "ends inside of it"),
    ('{"type":"code","function":{"name":"now","arguments":{}}}', "type 'code'"),
    ('{"type":"function","function":"now","arguments":{}}', "got `str`"),
    (CALL.replace('"name"', '"name":"now","name"'), "two of its keys give the name"),
    (tagged(CALL.replace('"name"', '"tool_name":"now","n\\u0061me"')), "two of its keys give the name"),
    (f'[{CALL[:-1]},"arguments":{{}}}}]', "two of its keys give the arguments"),
    (CALL[:-1] + ',"parameters":{"city":"Oslo"}}', "two of its keys give the arguments"),
    (OPENAI.replace('"id"', '"name":"now","id"'), "two of its keys give the name"),
    ("<think>I should call " + tagged(CALL), "never closed"),
    ("<tool_call>" + '{"a":' * 50_000, "ends inside of it"),
]


@each_case(("text", "says"), BROKEN)
@each_case(
    ("required", "match", "reference"),
    [(True, "valid", None), (False, "valid", []), (True, "exact", []), (False, "exact", "no json")],
)
def test_a_broken_call_is_always_the_models_fault_and_never_left_out(
    text: str, says: str, required: bool, match: str, reference: Any
) -> None:
    check = grade(text, reference, required=required, match=match)
    assert (check.value, check.status, check.fault) == (0.0, "scored", "model")
    assert says in check.reason


@each_case("text", FAMILIES)
def test_an_answer_that_is_cut_gives_no_other_call(text: str) -> None:
    schemas = {tool["name"]: tool.get("parameters", {}) for tool in (WEATHER, CLOCK)}
    wanted = read(text, schemas)
    assert wanted
    for end in range(len(text)):
        assert read(text[:end], schemas) in ([], wanted, wanted[:1]), text[:end]


def read(text: str, schemas: Any) -> list[Any]:
    try:
        return [(name, json.loads(arguments)) for name, arguments in calls_in_text(text, schemas) or []]
    except NotACall:
        return []


def test_words_alone_fail_where_a_call_is_required_and_pass_where_it_is_not() -> None:
    words = "It rains in Rome [1]. Call me at 5 (or later)."
    assert grade(words) == Check(0.0, fault="model", reason="no call")
    assert grade(words, required=False) == Check(1.0)
    assert grade('{"answer": "rain"}', required=False) == Check(1.0)
    assert grade("now (or later) it rains\nAction: wait", required=False) == Check(1.0)


@pytest.mark.parametrize("text", ["", " \n", "<think>Shall I call it?</think>\n"])
def test_an_empty_answer_is_never_right(text: str) -> None:
    assert grade(text, required=False) == Check(0.0, fault="model", reason="neither a call nor text")


@each_case(
    "text",
    [
        f"<toolcall>{CALL}</toolcall>",
        "<|tool_call|>get_weather Rome",
        "<tool_call {}",
        f"```tool\n{CALL}\n```",
        f"Here: {CALL}",
        '{"name": "get_weather", "args": {"city": "Rome"}}',
        '{"tool": "get_weather", "city": "Rome"}',
        "[TOOL_CALLS] get_weather",
        "<function=get_weather>{}</function>",
        'get_weather(city="Rome")',
        '[{"name": "get_weather"}]',
        '[get_weather(city="Rome")]',
        'get_weather(city="Rome',
        'get_weather({"city": "Rome"',
        'get_weather {"city": "Rome"}',
        "Action: get_weather\nAction Input: Rome",
        '<invoke name="get_weather">',
        "<|channel|>commentary to=functions.get_weather <|message|>{}",
        "<start_function_call>call:get_weather{city:Rome}",
    ],
)
def test_what_only_looks_like_a_call_does_not_pass_for_words(text: str) -> None:
    check = grade(text, required=False)
    assert (check.value, check.fault) == (0.0, "model")


@each_case("text", text_calls.of("get_weather"))
def test_a_call_written_as_text_does_not_pass_for_words(text: str) -> None:
    check = grade(text, required=False)
    assert (check.value, check.fault) == (0.0, "model")


def test_a_tool_named_by_an_everyday_word_is_known_by_its_arguments() -> None:
    search: dict[str, Any] = {"tools": [{"name": "search"}], "required": False}
    passing = {text for text in text_calls.of("search") if grade(text, **search).value == 1.0}
    assert passing == set(text_calls.LIKE_WORDS)
    for text in (
        "I search for Rome now (later too).",
        "Search results: none.",
        "A search, then a call.",
        "> search engines are fast",
    ):
        assert grade(text, **search) == Check(1.0)


@each_case("text", text_calls.HONEST)
def test_words_about_a_tool_are_words(text: str) -> None:
    assert grade(text, required=False) == Check(1.0)


def test_more_calls_than_allowed_fail() -> None:
    assert grade(tagged(CALL, OTHER), at_most=2).value == 1.0
    assert "at most 1" in grade(tagged(CALL, OTHER), at_most=1).reason
    days = [CALL.replace('"}', f'","days":{day - 30}' + "}") for day in range(33)]
    assert grade(tagged(*days[:32])).value == 1.0
    assert "at most 32" in grade(tagged(*days)).reason


@pytest.mark.parametrize(
    "again",
    [
        CALL,
        CALL.replace("Rome", "rome"),
        CALL.replace("Rome", " Rome "),
        CALL.replace("Rome", "R\u043eme"),
        CALL.replace("Rome", "Ro\u200bme"),
    ],
)
def test_the_same_call_again_pays_nothing_unless_it_is_wanted(again: str) -> None:
    check = grade(tagged(CALL, again))
    assert (check.value, check.fault) == (0.0, "model")
    assert "the same call occurs 2 times" in check.reason
    assert grade(tagged(CALL, again), repeats=2).value == 1.0
    assert grade(tagged(CALL, again), [json.loads(CALL)] * 2, match="name").value == 1.0
    assert grade(tagged(CALL, again), [json.loads(CALL), json.loads(OTHER)], match="name").value == 0.0


@each_case(
    ("text", "match", "reference", "value"),
    [
        (tagged(CALL), "exact", CALL, 1.0),
        (tagged(CALL), "exact", [json.loads(OPENAI)], 1.0),
        (tagged(OTHER, CALL), "exact", [json.loads(CALL), json.loads(OTHER)], 1.0),
        (tagged(CALL), "exact", [json.loads(CALL)] * 2, 0.0),
        (tagged(CALL, CALL), "exact", CALL, 0.0),
        (tagged(CALL.replace("Rome", "Oslo")), "exact", CALL, 0.0),
        (tagged(CALL.replace("Rome", "Oslo")), "name", CALL, 1.0),
        (tagged(CALL.replace('"}', '","days":2}')), "exact", CALL.replace('"}', '","days":2.0}'), 0.0),
        (tagged(OTHER), "name", CALL, 0.0),
        ("no need to call", "exact", [], 1.0),
        ("no need to call", "exact", CALL, 0.0),
        (tagged(CALL), "name", [], 0.0),
    ],
)
def test_the_reference_decides_which_calls_were_wanted(text: str, match: str, reference: Any, value: float) -> None:
    assert grade(text, reference, match=match).value == value


def test_without_a_usable_reference_a_good_call_is_not_compared() -> None:
    assert grade(tagged(CALL), match="exact").status == "unlabelled"
    check = grade(tagged(CALL), '{"x":1}', match="exact")
    assert (check.status, check.fault) == ("unscored", "user")
    assert grade("words", match="exact").value == 0.0


def test_a_hostile_answer_is_refused_quickly() -> None:
    started = time.process_time()
    for text in ("<tool_call>" * 20_000, '"name":"' * 20_000, "<" * 50_000, "get_weather(" * 5_000, "[" * 50_000):
        assert grade(text).value == 0.0
    assert time.process_time() - started < 2.0


@each_case(
    ("config", "param"),
    [
        ({}, "tools"),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": ""}]}, "tools.0.name"),
        ({"tools": [WEATHER, WEATHER]}, ""),
        ({"tools": [CLOCK, {"name": "x", "parameters": {"type": "nosuch"}}]}, "tools.1.parameters"),
        ({"tools": [CLOCK], "at_most": 0}, "at_most"),
        ({"tools": [CLOCK], "match": "fuzzy"}, "match"),
        ({"tools": [CLOCK], "reqired": True}, "reqired"),
    ],
)
def test_a_wrong_config_is_refused_with_its_field(config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        tool_call.build(config)
    assert caught.value.param == param


PARSED: list[dict[str, Any]] = [
    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
]


def grade_parsed(text: str, calls: list[dict[str, Any]], **config: Any) -> Check:
    check = tool_call.build({"tools": [WEATHER, CLOCK], **config})(Answer(text, parsed=ParsedAnswer(text, calls)))
    assert isinstance(check, Check)
    return check


def test_a_call_that_inference_parsed_is_judged_like_any_other() -> None:
    assert grade_parsed("", PARSED) == Check(1.0)
    assert grade_parsed("I look it up.", PARSED) == Check(1.0)
    unknown = [{"function": {"name": "fly", "arguments": "{}"}}]
    assert "names no tool" in grade_parsed("", unknown).reason
    wrong = [{"function": {"name": "get_weather", "arguments": '{"city": 7}'}}]
    assert "arguments of call 1" in grade_parsed("", wrong).reason
    assert "occurs 2 times" in grade_parsed("", PARSED * 2).reason


@pytest.mark.parametrize("required", [True, False])
def test_a_call_that_is_only_text_runs_nothing_where_tools_were_offered(required: bool) -> None:
    for text in (tagged(CALL), CALL, OPENAI, f"[{CALL}]"):
        for calls in ([], PARSED):
            check = grade_parsed(text, calls, required=required)
            assert (check.value, check.fault) == (0.0, "model")
    assert grade_parsed("It is sunny.", [], required=False) == Check(1.0)
    assert grade_parsed("It is sunny.", [], required=True).reason == "no call"
    assert grade_parsed("", [], required=False).reason == "neither a call nor text"


CITY = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
EXACTLY: dict[str, Any] = {"tools": [CITY], "match": "exact"}
CALLED = json.dumps([{"name": "weather", "arguments": {"city": 'U"lm'}}])


def body_of(text: str, *arguments: str, name: str = "weather") -> GenerationBody:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": written}}
        for number, written in enumerate(arguments)
    ]
    return GenerationBody(messages=[], text=text, prompt_ids=b"", completion_ids=b"", logprobs=b"", tool_calls=calls)


def test_an_answer_without_calls_is_its_text() -> None:
    assert body_of("hello").text_with_calls == "hello"
    assert body_of("").text_with_calls == ""


@pytest.mark.parametrize(
    ("text", "arguments", "value"),
    [
        ("", ['{"city": "U\\"lm"}'], 1.0),
        ("Let me look.", ['{"city":"U\\"lm"}'], 1.0),
        ("", ['{"city": "Bonn"}'], 0.0),
        ("", ['{"town": "Bonn"}'], 0.0),
        ("", [], 0.0),
    ],
)
def test_the_verifier_of_calls_reads_them(text: str, arguments: list[str], value: float) -> None:
    check = tool_call.build(EXACTLY)
    answer = Answer(body_of(text, *arguments).text_with_calls, {"reference": CALLED})

    assert check(answer).value == value


def test_names_and_several_calls_are_read() -> None:
    check = tool_call.build({"tools": [CITY], "repeats": 1})

    assert check(Answer(body_of("", '{"city": "Ulm"}', '{"city": "Bonn"}').text_with_calls)).value == 1.0
    assert "same call occurs 2 times" in check(Answer(body_of("", *['{"city": "Ulm"}'] * 2).text_with_calls)).reason
    assert "no tool of this task" in check(Answer(body_of("", "{}", name='x"y').text_with_calls)).reason
