"""Finds traces of tool calls in prose: calls that cannot be executed, written as text, JSON, tags, code or commands.

Prose may mention a tool ("get_weather tells the weather"). Its name may not occur where a call has it: before arguments, as the value of a
name, in a tag, in a block of code, as a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rewards.verifiers.lookalikes import as_displayed

_MARKS = (
    r"<[|/]{0,2}\s?(?:tool|function|action|api|invoke|antml)(?:[\s_:\u2581-]{0,2}(?:calls?|use|code|request|input|name|invoke|begin|end|args?|arguments|parameters?|[a-z]+=))*[\s\u2581]?(?:[|>=/\s{]|\Z)",
    r"\[/?(?:tool|function|action|api)[\s_-]?(?:calls?|use|request|input|code)s?\]",
    r"<function=|<\|(?:python_tag|call|plugin|action_start|channel)\|>|\bto=(?:functions|tools?)\b",
    r"(?:```|~~~)[ \t]*(?:tool|function|action|call|invoke)",
    r"[\"'](?:arguments|tool_calls?|function_calls?|tool_input|action_input|tool_name|function_name)[\"']\s{0,4}:|[\"'](?:tool|function)[\"']\s{0,4}:\s{0,4}[\"'{]",
    r"^[ \t*_>-]*(?:action input|tool input|function call|tool call)[ \t*_]*:",
)
_VERBS = r"(?:is|was|are|can|could|will|would|may|might|should|must|does|did|do|has|had|needs?|takes?|tells?|gives?|returns?|shows?|looks?|finds?|gets?|says?|failed|fails|works?|answers?|and|or|for|to|in|on|of|the|that|which)"
_PLAIN_WORD = re.compile(r"[a-z]+\Z")


class Traces:
    """Searches texts for traces of calls to some tools."""

    def __init__(self, names: Iterable[str]) -> None:
        names = sorted(names, key=len, reverse=True)
        # A name such as `now` is also an ordinary word, so only the syntax of a call counts.
        rare = [name for name in names if not _PLAIN_WORD.match(name)]
        patterns = _of_all(_either(names))
        if rare:
            patterns += _of_rare(_either(rare), _either(rare, is_loose=True))
        self._marks = re.compile("|".join(_MARKS), re.IGNORECASE | re.MULTILINE)
        self._names = re.compile("|".join((_either(names), _either(rare, is_loose=True))), re.IGNORECASE)
        self._patterns = re.compile("|".join(patterns), re.IGNORECASE | re.MULTILINE)
        self._fenced = re.compile(rf"(?<![^\W_]){_either(rare)}(?![^\W_])") if rare else None

    def search(self, text: str) -> str:
        """The first part that looks like a call, or ""."""
        text = as_displayed(text)
        if match := self._marks.search(text):
            return match.group()
        if (
            self._names.search(text) is None
        ):  # Most answers name no tool; the patterns cost ten times as much as this search.
            return ""
        if match := self._patterns.search(text):
            return match.group()
        if self._fenced is not None:
            for block in re.split(r"^[ \t]*(?:```|~~~)", text, flags=re.MULTILINE)[1::2]:
                if match := self._fenced.search(block):
                    return match.group()
        return ""


def _either(names: list[str], *, is_loose: bool = False) -> str:
    if not is_loose:
        return f"(?:{'|'.join(re.escape(name) for name in names)})"
    # get_weather, getWeather, get-weather, GET WEATHER
    loose = (r"[\s_.-]?".join(map(re.escape, re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name) or [name])) for name in names)
    return f"(?:{'|'.join(loose) or '(?!)'})"


def _of_all(tool: str) -> list[str]:
    quote = r"[`\"'*_]{0,3}"
    return [
        rf"\"\w+\"\s?:\s?\"{tool}\"|'\w+'\s?:\s?'{tool}'",
        # A call on its own line, perhaps not closed; ReAct; a name before its arguments.
        rf"^[ \t]*\[?{tool}\(.*\)\]?[ \t]*$|(?<![\w-]){tool}\((?:\s{{0,4}}\w+\s{{0,4}}[=:]|\s{{0,4}}[\"'{{\[])|(?<![\w-]){tool}\(\)",
        rf"^[ \t*_>-]*(?:action|tool|function|call|api|command|invoke)[ \t*_]*[:=][ \t*_]*{quote}{tool}\b|\bto=functions\.|\bcall:{tool}\{{",
        rf"^[ \t]*{quote}{tool}{quote}[ \t]?:?[ \t]?\{{|</?{tool}[\s/>]|<[^<>\n]{{1,40}}=[\"']?{tool}[\"'>\s]|\{{\{{\s*{tool}\b",
        rf"[@!/]{tool}\b[ \t]*[(\[{{\"'=]|(?<![\w-]){tool}\?\w+=",
        # Syntax that only commands, logs and code have, even for ordinary words.
        rf"(?<![\w-]){tool}{quote}[ \t]?\([ \t]*\w+[ \t]*=[ \t]*[\"'\d\[{{]|(?<![\w-]){tool}{quote}[ \t]*:?\s?\{{[ \t]*\"",
        rf"(?<![\w-]){tool}{quote},?[ \t]+(?:with[ \t]+)?(?:arguments?[ \t:]*)?(?:--?[a-z]+[ \t=]|\w{{2,}}=[\w\"']|\{{)",
        rf"^[ \t]*(?:[@!/]|\$[ \t]?){tool}(?:[ \t]|$)|^[ \t]*\[{tool}(?:[ \t][^\]\n]*)?\][ \t]*$|^[ \t]*[`\"]{tool}[`\"][ \t]*$|^[ \t]*{tool}[ \t]*->",
        rf"^[ \t-]*(?:name|tool_?name|function)[ \t]*:[ \t]*{quote}{tool}{quote}[ \t]*$",
        rf"\b(?:call|calling|invoke|invoking|execute|run|running)[ \t]+(?:the[ \t]+)?(?:tool[ \t]+|function[ \t]+)?[`\"']{tool}[`\"'][ \t]*(?:with|on|using|:)",
    ]


def _of_rare(tool: str, loose: str) -> list[str]:
    quote = r"[`\"'*_]{0,3}"
    before, after = r"(?<![^\W_])", r"(?![^\W_])"
    return [
        rf"{before}{tool}{quote}[ \t]{{0,2}}[({{]|{before}{loose}\(",
        rf"{before}{tool}{after}{quote}[ \t]*(?::|=|->|=>|\||,)?[ \t]*(?:with[ \t]+)?(?:arguments?[ \t:]*|parameters?[ \t:]*)?(?:[\[{{\"']|--?\w|\w+[ \t]?=[^=])",
        rf"(?:name|tool|function|action|call|recipient|command|method|uses?)[\"'`*]{{0,3}}[ \t]*(?:[:=]|=>)[ \t]*{quote}{tool}{after}",
        rf"^[ \t>$#@!/\[-]*{quote}{tool}{quote}[ \t;\])]*$",
        rf"^[ \t]*[>$#@!/\[][ \t]?{quote}{tool}{after}",
        rf"^[ \t]*{quote}{tool}{quote}[ \t]*(?::|->|\||,)?[ \t]+(?!{_VERBS}\b)[\w.,-]+(?:[ \t]+(?!{_VERBS}\b)[\w.,-]+)?[ \t]*$",
        rf"\b(?:call|calling|calls|invoke|invoking|execute|executing|run|running)[ \t:]+(?:the[ \t]+)?(?:tool[ \t]+|function[ \t]+)?{quote}{tool}{after}{quote}[ \t]*(?:with|on|using|:|\()[ \t]*[^\n]{{0,40}}(?:[:=]|[\"'{{\[]|\b[A-Z0-9])",
    ]
