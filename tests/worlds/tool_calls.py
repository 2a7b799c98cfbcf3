"""Answers as each family writes them, and small tokenizers that know its markers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from contracts.answers.parts import AnswerPart, add_calls
from contracts.answers.registry import Family, family_of
from services.inference.tools.parser import parser_maker
from tests.chat_templates import byte_tokenizer

END = "<|fin|>"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
]
WEATHER = {"city": 'K"öln', "days": 2}
DS = "\uff5c"
DS_CALL, DS_CALL_END = f"<{DS}tool\u2581call\u2581begin{DS}>", f"<{DS}tool\u2581call\u2581end{DS}>"
DS_CALLS, DS_CALLS_END = f"<{DS}tool\u2581calls\u2581begin{DS}>", f"<{DS}tool\u2581calls\u2581end{DS}>"
DS_SEP = f"<{DS}tool\u2581sep{DS}>"


class Sample(NamedTuple):
    """One family.

    Attributes:
        template: texts by which it is recognised.
        calls: an answer that calls get_weather with WEATHER, then ping; `ping` None: it makes one call only.
        broken: answers that are no calls, though they begin like one.
    """

    name: str
    template: str
    calls: str
    broken: tuple[str, ...]
    num_calls: int = 2


JSON = '{"city": "K\\"öln", "days": 2}'
SAMPLES = (
    Sample(
        "hermes",
        "<tool_call> </tool_call> <think> </think>",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>',
            '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
            '<tool_call>\n{"name": "ping", "arguments": [1]}\n</tool_call>',
            '<tool_call>\n{"name": "ping", "argum',
            "<tool_call> I would call now </tool_call>",
            '<tool_call>{"arguments": {}}</tool_call>',
        ),
    ),
    Sample(
        "qwen_xml",
        "<tool_call> </tool_call> <function= <parameter= <think> </think>",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\nK"öln\n</parameter>\n<parameter=days>\n2\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        (
            "<tool_call>\n<function=nobody>\n</function>\n</tool_call>",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</function>\n</tool_call>",
            (
                "<tool_call>\n<function=get_weather>\n<parameter=city>\na\n</parameter>\n<parameter=city>\nb\n</parameter>\n"
                "</function>\n</tool_call>"
            ),
        ),
    ),
    Sample(
        "glm",
        "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <think> </think>",
        '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>K"öln</arg_value>\n<arg_key>days</arg_key>\n'
        "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
        ("<tool_call>nobody\n</tool_call>", "<tool_call>ping", "<tool_call>get_weather\n<arg_key>city</tool_call>"),
    ),
    Sample(
        "llama",
        '{"name": function name, "parameters": dictionary} <|python_tag|> "parameters": {"name":',
        f'{{"name": "get_weather", "parameters": {JSON}}}; {{"name": "ping", "parameters": {{}}}}',
        (
            '{"name": "nobody", "parameters": {}}',
            '{"name": "ping", "parameters": {}} is what I would call',
            '{"name": "ping", "para',
            '{"just": "json"}',
            "{ brace",
        ),
    ),
    Sample(
        "pythonic",
        "[func_name1(params_name1=params_value1)]",
        """[get_weather(city='K"öln', days=2), ping()]""",
        ("[nobody()]", "[ping()] it is", "[1, 2]", "[ping(1)]", "[ping(", "[]", "[ping(**{})]", "[__import__('os')()]"),
    ),
    Sample(
        "lfm2",
        "<|tool_call_start|> <|tool_call_end|> <think> </think>",
        """<|tool_call_start|>[get_weather(city='K"öln', days=2), ping()]<|tool_call_end|>""",
        (
            "<|tool_call_start|>[nobody()]<|tool_call_end|>",
            "<|tool_call_start|>[ping(]<|tool_call_end|>",
            "<|tool_call_start|>[ping(x=open('/etc/passwd'))]<|tool_call_end|>",
        ),
    ),
    Sample(
        "mistral",
        "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
        f"[TOOL_CALLS]get_weather[ARGS]{JSON}[TOOL_CALLS]ping[ARGS]{{}}",
        ("[TOOL_CALLS]nobody[ARGS]{}", "[TOOL_CALLS]ping[ARGS]{", "[TOOL_CALLS] ping"),
    ),
    Sample(
        "mistral",
        "[TOOL_CALLS] before v11, ids of length 9",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "ping", "arguments": {{}}}}]',
        ('[TOOL_CALLS] [{"name": "nobody", "arguments": {}}]', '[TOOL_CALLS] [{"name": "ping"', "[TOOL_CALLS] []"),
    ),
    Sample(
        "deepseek",
        f"{DS_CALLS}{DS_CALL} {DS_SEP} ```json {DS_CALL_END}{DS_CALLS_END} <think> </think>",
        f"{DS_CALLS}{DS_CALL}function{DS_SEP}get_weather\n```json\n{JSON}\n```{DS_CALL_END}\n"
        f"{DS_CALL}function{DS_SEP}ping\n```json\n{{}}\n```{DS_CALL_END}{DS_CALLS_END}",
        (
            f"{DS_CALL}function{DS_SEP}nobody\n```json\n{{}}\n```{DS_CALL_END}",
            f"{DS_CALL}function{DS_SEP}ping\n```json\n{{",
        ),
    ),
    Sample(
        "deepseek_v3_1",
        f"{DS_CALLS}{DS_CALL} {DS_SEP} {DS_CALL_END}{DS_CALLS_END} <think> </think>",
        f"{DS_CALLS}{DS_CALL}get_weather{DS_SEP}{JSON}{DS_CALL_END}{DS_CALL}ping{DS_SEP}{{}}{DS_CALL_END}{DS_CALLS_END}",
        (f"{DS_CALL}nobody{DS_SEP}{{}}{DS_CALL_END}", f"{DS_CALL}ping{DS_SEP}{{"),
    ),
    Sample(
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_argument_begin|><|tool_call_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{JSON}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        ("<|tool_call_begin|>functions.nobody:0<|tool_call_argument_begin|>{}<|tool_call_end|>",),
    ),
    Sample(
        "gemma4",
        '<|tool_call>call: <tool_call|> <|"|> <|channel> <channel|>',
        '<|tool_call>call:get_weather{city:<|"|>K"öln<|"|>,days:2}<tool_call|><|tool_call>call:ping{}<tool_call|>',
        (
            "<|tool_call>call:nobody{}<tool_call|>",
            "<|tool_call>call:get_weather{city:Bonn}<tool_call|>",
            "<|tool_call>call:ping{",
            "<|tool_call>call:ping{a:[[}<tool_call|>",
        ),
    ),
    Sample(
        "functiongemma",
        "<start_function_call>call: <end_function_call> <escape>",
        '<start_function_call>call:get_weather{city:<escape>K"öln<escape>,days:2}<end_function_call>'
        "<start_function_call>call:ping{}<end_function_call>",
        ("<start_function_call>call:nobody{}<end_function_call>",),
    ),
    Sample(
        "phi4",
        "<|tool_call|> <|/tool_call|>",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "ping", "arguments": {{}}}}]<|/tool_call|>',
        ('<|tool_call|>[{"name": "nobody"}]<|/tool_call|>', '<|tool_call|>[{"name": "ping"}'),
    ),
    Sample(
        "nemotron",
        "<TOOLCALL>",
        f'<TOOLCALL>[{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "ping", "arguments": {{}}}}]</TOOLCALL>',
        ('<TOOLCALL>[{"name": "nobody"}]</TOOLCALL>', "<TOOLCALL>[]</TOOLCALL>"),
    ),
    Sample(
        "harmony",
        "<|channel|> <|message|> <|start|> <|end|>",
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>",
        (
            "<|channel|>commentary to=functions.nobody <|constrain|>json<|message|>{}<|call|>",
            "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{<|call|>",
        ),
        1,
    ),
    Sample(
        "muse",
        "<atem:function_calls> <|message|> <|start|>",
        ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">K"öln</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=ping<|message|><atem:function_calls>\n"
        '<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls><|eot|>',
        (
            (
                ' to=nobody<|message|><atem:function_calls>\n<atem:invoke name="nobody">\n</atem:invoke>\n'
                "</atem:function_calls><|eot|>"
            ),
            " to=ping<|message|>I ping<|eot|>",
        ),
    ),
)


class ToolCallsWorld(NamedTuple):
    """A family with a tokenizer."""

    family: Family
    tokenizer: Tokenizer

    def read(self, text: str, tools: Sequence[dict[str, Any]] = TOOLS, **options: Any) -> AnswerPart:
        """What an answer is for the caller; calls in one part each."""
        parser = parser_maker(self.family, self.tokenizer, options.pop("prompt", []), tools, **options)()
        parts = [parser.push(token_id) for token_id in self.tokenizer.encode(text).ids]
        return whole([*parts, parser.flush()])


def whole(parts: Sequence[AnswerPart]) -> AnswerPart:
    """All parts together."""
    return AnswerPart(
        "".join(part.content for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.calls),
    )


def calls_of(part: AnswerPart) -> list[tuple[str, str]]:
    """Names and arguments."""
    calls: list[dict[str, Any]] = []
    add_calls(calls, part.calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def added_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Their ids, by text."""
    return {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}


def world_of(sample: Sample, *, tokens: bool) -> ToolCallsWorld:
    """With markers that are tokens, or texts like any other."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    family = family_of(sample.template, added_tokens(tokenizer))
    if tokens:
        markers = [*(family.form.markers if family.form else ()), *(family.channels.all if family.channels else ())]
        if family.reasoning is not None:
            markers += [family.reasoning.opener_marker, family.reasoning.closer]
        known = [text for text in dict.fromkeys(markers) if text in sample.template + sample.calls]
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in known])
        family = family_of(sample.template, added_tokens(tokenizer))
    return ToolCallsWorld(family, tokenizer)
