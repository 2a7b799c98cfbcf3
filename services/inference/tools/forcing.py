"""The grammar of an answer that must call a tool, or whose calls must satisfy their schemas. Pure.

In: the family, the tools, what is asked. Out: Lark in llguidance's dialect, which the engine compiles. An answer may reason first,
in the family's own marks, for a part of its tokens. A tool is described by its schema alone, also if it is not `strict`.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.answers.families.form import Forced, Schema
from contracts.answers.grammar import ANY_OBJECT, either, json_rule, quoted, sequence
from contracts.answers.registry import ChannelMarks, Family

_MOST_CALLS = 32
_ANY = "/(?s:.*)/"
_HARMONY_CALL = "commentary to=functions."


def answer_grammar(
    family: Family,
    schemas: Mapping[str, Schema],
    *,
    is_required: bool = False,
    parallel: bool = True,
    in_reasoning: bool = False,
    content: Schema | None = None,
    max_tokens: int = 2**20,
) -> str:
    """The grammar of an answer of at most `max_tokens`, by a family that reads calls, if there are tools.

    `schemas`: of the parameters of each tool that may be called; `is_required` False: the answer may be text, or text and calls; `parallel`:
    there may be several calls; `in_reasoning`: the prompt has opened reasoning; `content`: JSON schema of an answer without calls; None: any
    text.
    """
    most_thoughts = reasoning_budget(max_tokens)
    form = family.form
    forced = form.forced(schemas, family.marks) if form is not None else Forced({})
    if family.channels is not None:
        return _channels(
            family, family.channels, schemas, forced, content, most_thoughts=most_thoughts, is_required=is_required
        )
    thought, rules = _reasoning(family, most_thoughts, in_reasoning=in_reasoning)
    if not schemas:
        return f"start: {sequence(thought, json_rule(content or ANY_OBJECT))}\n{rules}\n"
    calls = _calls(forced, parallel=parallel)
    marker = family.marks.lark(forced.marker) if forced.marker else ""
    whole = sequence(marker, "calls")
    if is_required:
        start = whole
    elif content is not None:
        start, rules = f"({whole} | content)", f"{rules}\ncontent: {json_rule(content)}"
    elif not marker:
        start, rules = "(calls | BARE_TEXT)?", f"{rules}\nBARE_TEXT: /[^{{\\[\\s](?s:.*)/"
    elif family.marks.is_token(forced.marker):
        start = sequence(_ANY, f"({whole})?")
    else:
        start = "(lead calls | PLAIN)"
        openers = dict.fromkeys((forced.marker, *(form.openers if form is not None else ())))
        plain = " & ".join([_ANY, *(f"~/(?s:.*){_pattern(text)}(?s:.*)/" for text in openers)])
        rules += f"\nlead[lazy]: /(?s:.*){_pattern(forced.marker)}/\nPLAIN: {plain}"
    return f"start: {sequence(thought, start)}\n{calls}\n{rules}\n{forced.rules}\n"


def reasoning_budget(max_tokens: int) -> int:
    """The most tokens of reasoning before something forced: a quarter to a half of the answer, so that there is room for it.

    A power of two, so that answers of different lengths share a compiled grammar.
    """
    return int(2 ** (max(max_tokens // 2, 1).bit_length() - 1))


def _calls(forced: Forced, *, parallel: bool) -> str:
    names = list(forced.call)
    rules = "\n".join(f"call_{place}: {forced.call[name]}" for place, name in enumerate(names))
    call = either(f"call_{place}" for place in range(len(names)))
    further = f"({sequence(forced.between, 'call')}){{0,{_MOST_CALLS - 1}}}" if parallel and forced.between else ""
    return f"calls: {sequence(forced.before, 'call', further, forced.after)}\ncall: {call}\n{rules}"


def _reasoning(family: Family, most_tokens: int, *, in_reasoning: bool) -> tuple[str, str]:
    """What may stand before the calls, and its rules."""
    marks = family.reasoning
    if marks is None:
        return "", ""
    space = "/[ \\n]{0,4}/"
    rules = family.marks.text_until("thought_end", marks.closer, most_tokens)
    if in_reasoning:
        return sequence("thought_end", space), rules
    rest = marks.opener.removeprefix(marks.opener_marker)
    opener = sequence(family.marks.lark(marks.opener_marker), quoted(rest) if rest else "")
    return f"({sequence(opener, 'thought_end', space)})?", rules


def _channels(
    family: Family,
    channels: ChannelMarks,
    schemas: Mapping[str, Schema],
    forced: Forced,
    content: Schema | None,
    *,
    most_thoughts: int,
    is_required: bool,
) -> str:
    """Messages: reasoning, then one call, or the answer."""
    lark = family.marks.lark
    message, start = lark(channels.message), lark(channels.starts[0])
    said = _ANY if content is None else json_rule(content)
    if channels.channel:
        channel, last, constrain = lark(channels.channel), lark("<|call|>"), lark("<|constrain|>")
        calls = [
            sequence(
                channel,
                quoted(f"{_HARMONY_CALL}{name} "),
                constrain,
                quoted("json"),
                message,
                json_rule(schema),
                f"{last}?",
            )
            for name, schema in schemas.items()
        ]
        thought = sequence(
            channel, quoted("analysis"), message, "thoughts", lark("<|end|>"), start, quoted("assistant")
        )
        text = sequence(channel, quoted("final"), message, said, f"{lark('<|return|>')}?")
    else:
        last = lark("<|eot|>")
        calls = [
            sequence(quoted(f" to={name}"), message, lark(forced.marker), rule, f"{last}?")
            for name, rule in forced.call.items()
        ]
        thought = sequence(quoted(" to=self"), message, "thoughts", lark("<|eom|>"), start, quoted("assistant"))
        text = sequence(quoted(" to=user"), message, said, f"{last}?")
    parts = calls if is_required else [*calls, text]
    rules = [f"part_{place}: {part}" for place, part in enumerate(parts)]
    whole = either(f"part_{place}" for place in range(len(parts)))
    # Two messages of reasoning share the budget.
    thoughts = f"thoughts[max_tokens={max(most_thoughts // 2, 1)}]: {_ANY}"
    return "\n".join([f"start: ({thought}){{0,2}} {whole}", thoughts, *rules, forced.rules, ""])


def _pattern(text: str) -> str:
    """The text as a regular expression of Lark, between slashes."""
    return "".join(f"\\{character}" if character in ".^$*+?()[]{}|\\/" else character for character in text)
