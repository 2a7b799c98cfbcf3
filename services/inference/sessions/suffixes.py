"""The ids behind an answer: only new messages are rendered, the answer keeps the tokens that the model wrote.

A chat template renders whole conversations. So two short ones are rendered, which differ in their answer alone; what is equal behind
it, from the token that closes an answer on, is what the template writes for the new messages. The same idea is `encode_incremental` of
uni-agent and `_get_tool_suffix_ids` of trl, which compare one dummy conversation with its own beginning; that fails where a template
renders the last answer in another way than earlier ones (Qwen3), and two conversations do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import InvalidRequest, Unsupported
from contracts.turns import Branch
from services.inference.template.chat_template import ChatTemplate

_ASKED = {"role": "user", "content": "-"}
_MARKS = ("qz", "zq 7")
_REASONING = "qzreasoning"


def continuation_of(
    template: ChatTemplate,
    shown: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    close: int,
    *,
    has_reasoning: bool,
) -> tuple[list[int], Branch]:
    """The ids behind those of an earlier call, or why they cannot follow.

    Args:
        template: of the policy.
        shown: the answer of that call, and what follows it.
        options: of the template.
        close: the last token of that answer.
        has_reasoning: any answer among the earlier ids reasoned.
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
