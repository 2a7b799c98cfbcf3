"""Checks of an answer's beginning, its end, and its overall form."""

from __future__ import annotations

import re

from pydantic import Field

from contracts.tasks.section import TaskSection
from examples.verifiers.instructions.rule import Instruction, Unusable, of_text
from rewards.verifiers.check import Answer
from rewards.verifiers.lookalikes import as_displayed, plain

_QUOTES = {'"': '"', "\u201c": "\u201d", "\u201e": "\u201c", "\u00ab": "\u00bb"}


class PhraseParameters(TaskSection):
    """The exact text."""

    value: str = Field(min_length=1)


class SeparatorParameters(TaskSection):
    """The text between two answers."""

    value: str = Field(default="******", min_length=3)


class MarkParameters(TaskSection):
    """The beginning of a postscript."""

    value: str = Field(default="P.S.", min_length=1)


class PromptParameters(TaskSection):
    """The text to repeat; by default the user's last message."""

    value: str | None = Field(default=None, min_length=1)


def _starts_with(answer: Answer, rule: PhraseParameters) -> str:
    return "" if answer.text.lstrip().startswith(plain(rule.value)) else f"it does not start with {rule.value[:60]!r}"


def _ends_with(answer: Answer, rule: PhraseParameters) -> str:
    return "" if answer.text.rstrip().endswith(plain(rule.value)) else f"it does not end with {rule.value[:60]!r}"


def _quoted(text: str) -> str:
    text = text.strip()
    closing = _QUOTES.get(text[:1])
    if closing is None or not text.endswith(closing) or not text[1:-1].strip():
        return "it is not in quotes as a whole"
    inside = text[1:-1]
    return "the quotes close before its end" if text[0] == '"' and '"' in inside.replace('\\"', "") else ""


def _two_responses(answer: Answer, rule: SeparatorParameters) -> str:
    parts = [" ".join(part.split()) for part in answer.text.split(rule.value)]
    if len(parts) != 2 or not all(parts):  # noqa: PLR2004 two are asked for
        return f"it is not two answers with {rule.value!r} between them"
    return "both answers are the same" if as_displayed(parts[0]) == as_displayed(parts[1]) else ""


def _postscript(answer: Answer, rule: MarkParameters) -> str:
    found = re.search(rf"^[ \t*_]*{re.escape(rule.value)}[^\n]*?\w", answer.text.strip(), re.MULTILINE)
    found = found if found and found.start() else None  # a postscript must follow some text
    return "" if found else f"no line begins with {rule.value!r} after the answer"


def _repeat_prompt(answer: Answer, rule: PromptParameters) -> str:
    prompt = " ".join((rule.value if rule.value is not None else _last_message(answer)).split())
    prompt = plain(prompt)
    if not prompt:
        raise Unusable("the prompt has no text to repeat")
    given = " ".join(answer.text.split())
    if not given.startswith(prompt):
        return "it does not repeat the prompt first"
    return "" if given[len(prompt) :].strip() else "it only repeats the prompt"


def _last_message(answer: Answer) -> str:
    for message in reversed(answer.messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
    raise Unusable("there is no user message to repeat")


INSTRUCTIONS = {
    "starts_with": Instruction(PhraseParameters, _starts_with),
    "ends_with": Instruction(PhraseParameters, _ends_with),
    "quoted": of_text(_quoted),
    "two_responses": Instruction(SeparatorParameters, _two_responses),
    "postscript": Instruction(MarkParameters, _postscript),
    "repeat_prompt": Instruction(PromptParameters, _repeat_prompt),
}
