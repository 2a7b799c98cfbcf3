"""The ids behind an answer: only new messages are rendered, the answer keeps the tokens that the model wrote. Pure.

A chat template renders whole conversations. So two short ones are rendered, which differ in their answer alone; what is equal behind
it, from the token that closes an answer on, is what the template writes for the new messages. The same idea is `encode_incremental` of
uni-agent and `_get_tool_suffix_ids` of trl, which compare one dummy conversation with its own beginning; that fails where a template
renders the last answer in another way than earlier ones (Qwen3), and two conversations do not. `next_calls` tells before anybody serves
a template whether calls of a session will go on token for token with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contracts.errors import InvalidRequest, Unsupported
from contracts.turns import Branch
from runtime.template.chat_template import ChatTemplate

_ASKED = {"role": "user", "content": "-"}
_MARKS = ("qz", "zq 7")
_REASONING = "qzreasoning"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
_ANSWERED = {"role": "assistant", "content": "Good."}
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_QUESTION = {"role": "user", "content": "And then?"}
_RESULT = {"role": "tool", "tool_call_id": _CALL["id"], "name": "look", "content": '{"seen": 1}'}


def continuation_of(
    template: ChatTemplate,
    shown: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    close: int,
    *,
    has_reasoning: bool,
) -> tuple[list[int], Branch]:
    """The ids behind those of an earlier call, or why they cannot follow.

    `shown`: the answer of that call, and what follows it; `close`: the last token of that answer; `has_reasoning`: any answer among the
    earlier ids reasoned.
    """
    answer, *new = shown
    if has_reasoning and not keeps_reasoning(template, answer, new, options):
        return [], "reasoning_dropped"
    suffix = suffix_of(template, answer, new, options, close)
    return ([], "template") if suffix is None else (suffix, "")


def suffix_of(
    template: ChatTemplate,
    answer: Mapping[str, Any],
    new: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    close: int,
) -> list[int] | None:
    """The ids behind `close`, the token with which the model ended `answer`, up to where its next answer begins.

    None: this template closes answers with another token, or refuses the new messages behind an answer. Tools are not rendered: they
    stand in the prompt, and a template that writes them before the last question would write them twice.
    """
    one, other = (_marked(answer, mark) for mark in _MARKS)
    try:
        first = template.encode([_ASKED, one, *new], options=options)
        second = template.encode([_ASKED, other, *new], options=options)
        third = template.encode([_ASKED, one, {**new[0], "content": _MARKS[1]}], options=options)
    except (InvalidRequest, Unsupported):
        return None
    behind = first[len(first) - num_equal(first[::-1], second[::-1]) :]
    if close not in behind:
        return None
    end = len(first) - len(behind) + behind.index(close) + 1
    # The token closes the answer only if it comes before the first new text.
    return first[end:] if end <= num_equal(first, third) else None


def num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal ids both begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def keeps_reasoning(
    template: ChatTemplate, answer: Mapping[str, Any], new: Sequence[dict[str, Any]], options: Mapping[str, Any]
) -> bool:
    """Whether the template still shows the reasoning of earlier answers once these messages follow."""
    shown = {**_marked(answer, _MARKS[0]), "reasoning_content": _REASONING}
    try:
        return _REASONING in template.render([_ASKED, shown, *new], options=options)
    except (InvalidRequest, Unsupported):
        return False


def _marked(answer: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """An answer of the same kind, with another content or, if it calls tools, other arguments of the last call."""
    calls = answer.get("tool_calls")
    if not calls:
        return {"role": "assistant", "content": mark}
    *others, last = calls
    changed = {**last, "function": {**last["function"], "arguments": {"q": mark}}}
    return {"role": "assistant", "content": "", "tool_calls": [*others, changed]}


class NextCall(NamedTuple):
    """What becomes of the call after an answer. `branch`: why it is rendered anew; empty: it goes on token for token."""

    follows: str
    """What comes after the answer, in words."""
    branch: Branch


def next_calls(template: ChatTemplate, stops: Sequence[int]) -> list[NextCall]:
    """The call after an answer, after a call of a tool if the template renders tools, and after reasoning if its family marks it.

    `stops`: the tokens with which the engine ends an answer. An ending goes on if one of them does.
    """
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("a question", _ANSWERED, _QUESTION)]
    if template.takes_tools:
        cases.append(("a tool's result", _CALLED, _RESULT))
    found = [NextCall(follows, _branch(template, answer, new, stops)) for follows, answer, new in cases]
    if template.family.reasoning is None and template.family.channels is None:
        return found
    for (follows, answer, new), plain in zip(cases, tuple(found), strict=True):
        dropped: Branch = "" if keeps_reasoning(template, answer, [new], {}) else "reasoning_dropped"
        found.append(NextCall(f"reasoning and {follows}", plain.branch or dropped))
    return found


def _branch(template: ChatTemplate, answer: dict[str, Any], new: dict[str, Any], stops: Sequence[int]) -> Branch:
    return "" if any(suffix_of(template, answer, [new], {}, stop) is not None for stop in stops) else "template"
