"""The families: in which form a policy writes calls and reasoning, recognised by the markers in its chat template. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from contracts.answers.families.form import CallForm
from contracts.answers.families.gemma import Gemma
from contracts.answers.families.json_calls import JsonCalls
from contracts.answers.families.named_json import DeepSeek, Kimi, Mistral
from contracts.answers.families.pythonic import Pythonic
from contracts.answers.families.xml_calls import Atem, Glm, QwenXml
from contracts.answers.marks import Marks
from contracts.answers.reasoning import ReasoningMarks, reasoning_of

UNKNOWN = "unknown"


class ChannelMarks(NamedTuple):
    """The markers of a family whose answers are several messages with headers; see contracts/answers/channels.py.

    `message` ends a header, `starts` begin one, `ends` end a message. `channel` stands before the name of a channel; empty if recipients
    alone tell messages apart. `other` mean nothing here.
    """

    message: str
    ends: tuple[str, ...]
    starts: tuple[str, ...]
    channel: str = ""
    other: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All markers."""
        return tuple(filter(None, (self.message, self.channel, *self.ends, *self.starts, *self.other)))


class _Kind(NamedTuple):
    """How a family is recognised: by all texts of `shown` in the template, and by the token `known`, if set."""

    name: str
    shown: tuple[str, ...]
    form: CallForm | None
    channels: ChannelMarks | None = None
    known: str = ""


class Family(NamedTuple):
    """What is known about the answers of a policy. `name`: `unknown` if its calls cannot be told from text.

    `form`: of calls; None if unknown, or if the messages of the answer (`channels`) carry them as JSON. `reasoning`: None if it is not
    marked. `short_ids`: the template takes ids of calls of nine letters and digits only.
    """

    name: str
    form: CallForm | None
    reasoning: ReasoningMarks | None
    channels: ChannelMarks | None
    marks: Marks
    short_ids: bool = False

    @property
    def reads_calls(self) -> bool:
        """Whether calls are told from text."""
        return self.form is not None or self.channels is not None

    @property
    def reads_reasoning(self) -> bool:
        """Whether reasoning is told from content."""
        return self.reasoning is not None or self.channels is not None

    @property
    def description(self) -> str:
        """For people: the name and what is supported."""
        said = [
            "calls parsed" if self.reads_calls else "calls stay text, and cannot be forced",
            "reasoning apart" if self.reads_reasoning else "no marked reasoning",
        ]
        return f"{self.name}: {', '.join(said)}"


_HARMONY = ChannelMarks(
    "<|message|>", ("<|end|>", "<|call|>", "<|return|>"), ("<|start|>",), "<|channel|>", ("<|constrain|>",)
)
_MUSE = ChannelMarks("<|message|>", ("<|eom|>", "<|eot|>"), ("<|start|>",))
_FENCED = "```json"
_DEEPSEEK = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_KINDS = (
    _Kind("muse", ("<atem:function_calls>",), Atem(), _MUSE),
    _Kind("harmony", ("<|channel|>", "<|message|>"), None, _HARMONY),
    _Kind("gemma4", ("<|tool_call>", "call:"), Gemma("<|tool_call>", "<tool_call|>", '<|"|>', ("<|tool_response>",))),
    _Kind("functiongemma", ("<start_function_call>",),
          Gemma("<start_function_call>", "<end_function_call>", "<escape>", ("<start_function_response>",))),
    _Kind("glm", ("<tool_call>", "<arg_key>"), Glm()),
    _Kind("qwen_xml", ("<tool_call>", "<function="), QwenXml()),
    _Kind("deepseek", (_DEEPSEEK, _FENCED), DeepSeek(is_fenced=True)),
    _Kind("deepseek_v3_1", (_DEEPSEEK,), DeepSeek(is_fenced=False)),
    _Kind("kimi", ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"), Kimi()),
    _Kind("lfm2", ("<|tool_call_start|>",), Pythonic("<|tool_call_start|>", "<|tool_call_end|>")),
    _Kind("lfm2", ("<|tool_list_start|>",), Pythonic("<|tool_call_start|>", "<|tool_call_end|>"), known="<|tool_call_start|>"),
    _Kind("mistral", ("[TOOL_CALLS]",), Mistral()),
    _Kind("cohere", ("<|START_ACTION|>",),
          JsonCalls("<|START_ACTION|>", "<|END_ACTION|>", is_list=True, name="tool_name", arguments="parameters")),
    _Kind("phi4", ("<|tool_call|>", "<|/tool_call|>"), JsonCalls("<|tool_call|>", "<|/tool_call|>", is_list=True)),
    _Kind("granite", ("<|tool_call|>",), JsonCalls("<|tool_call|>", is_list=True)),
    _Kind("functools", ("functools[",), JsonCalls("functools", is_list=True)),
    _Kind("nemotron", ("<TOOLCALL>",), JsonCalls("<TOOLCALL>", "</TOOLCALL>", is_list=True)),
    _Kind("hermes", ("<tool_call>",), JsonCalls("<tool_call>", "</tool_call>", line="\n")),
    _Kind("pythonic", ("[func_name1(",), Pythonic()),
    _Kind("llama", ('"parameters":', '{"name":'), JsonCalls("", arguments="parameters")),
)  # fmt: skip
"""In the order in which they are tried: those with the rarer markers first."""
_NAMED = {kind.name: kind for kind in _KINDS}
FAMILIES = tuple(dict.fromkeys(kind.name for kind in _KINDS))
_NINE = re.compile(r"length\s*!=\s*9|length 9")


def family_of(template_source: str, added_tokens: Mapping[str, int]) -> Family:
    """The family of a policy with this chat template. `added_tokens`: their ids; where a marker is one, only the token counts."""
    kind = next((kind for kind in _KINDS if _is_shown(kind, template_source, added_tokens)), None)
    reasoning = None if kind is not None and kind.channels else reasoning_of(template_source)
    markers = list[str]()
    if kind is not None:
        markers += (*(kind.form.markers if kind.form else ()), *(kind.channels.all if kind.channels else ()))
        markers += BARE_MARKERS if kind.form is not None and kind.form.is_bare else ()
    if reasoning is not None:
        markers += (reasoning.opener_marker, reasoning.closer)
    name, form, channels = (kind.name, kind.form, kind.channels) if kind is not None else (UNKNOWN, None, None)
    short_ids = _NINE.search(template_source) is not None
    return Family(name, form, reasoning, channels, Marks(added_tokens, markers), short_ids)


def family_named(name: str) -> Family:
    """A family in texts, where no marker is a token. Raises KeyError if there is none."""
    kind = _NAMED[name]
    return Family(name, kind.form, None, kind.channels, Marks({}, ()))


BARE_MARKERS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
"""Markers that Llama sometimes writes around a bare call; they mean nothing by themselves."""


def _is_shown(kind: _Kind, source: str, added_tokens: Mapping[str, int]) -> bool:
    if not all(text in source for text in kind.shown):
        return False
    return not kind.known or kind.known in added_tokens
