"""Whether calls of a session will go on token for token with a chat template, told before anybody serves it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from contracts.turns import Branch
from services.inference.sessions.suffixes import keeps_reasoning, suffix_of
from services.inference.template.chat_template import ChatTemplate

_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
_ANSWERED = {"role": "assistant", "content": "Good."}
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_QUESTION = {"role": "user", "content": "And then?"}
_RESULT = {"role": "tool", "tool_call_id": _CALL["id"], "name": "look", "content": '{"seen": 1}'}


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
