"""Parses the answers of one policy. Pure.

In: token ids, one after another. Out: what became final: content, reasoning and calls (contracts/answers/parts.py). Parts are never taken
back. A broken call becomes content: it is never an error.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from tokenizers import Tokenizer

from contracts.answers.grammar import ANY_OBJECT
from contracts.answers.marks import Marks
from contracts.answers.parts import NOTHING, AnswerPart, Output, Sink
from contracts.answers.reading import AnswerReader, reader_of
from contracts.answers.registry import Family
from contracts.answers.strict import StrictSchema
from runtime.template.chat_template import opens_reasoning

_LETTERS = string.ascii_letters + string.digits
_SHORT_ID = 9
_UNFINISHED = "\ufffd"


class AnswerParser(Protocol):
    """Reads one answer. One for each choice."""

    def push(self, token_id: int) -> AnswerPart:
        """Add a token."""
        ...

    def flush(self) -> AnswerPart:
        """The answer has ended: what was held back. Called once."""
        ...


class Detokenizer:
    """Turns token ids into text, one at a time; only the last few ids are decoded again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)
        self._ids: list[int] = []
        self._num_shown = 0  # how many of the kept ids have their text shown,
        self._num_characters = 0  # and how many characters that text has

    def push(self, token_id: int) -> str:
        """Add a token. Returns the text that became final."""
        self._ids.append(token_id)
        text = self.flush()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._keep_context()
        return text

    def settle(self) -> str:
        """Like `flush`, but more tokens may follow: an incomplete character stays one."""
        text = self.flush()
        self._keep_context()
        return text

    def flush(self) -> str:
        """The rest of the text, with incomplete characters as U+FFFD."""
        return str(self._decode(self._ids)[self._num_characters :])

    def _keep_context(self) -> None:
        # Shown ids stay as context: decoders treat the first token of a text differently.
        self._ids = self._ids[self._num_shown :]
        self._num_shown, self._num_characters = len(self._ids), len(self._decode(self._ids))


class PlainParser:
    """An answer that is all content."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token_id: int) -> AnswerPart:
        """See `AnswerParser`."""
        text = self._detokenizer.push(token_id)
        return AnswerPart(text) if text else NOTHING

    def flush(self) -> AnswerPart:
        """See `AnswerParser`."""
        return AnswerPart(self._detokenizer.flush())


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{secrets.token_hex(12)}"


def new_short_id() -> str:
    """An id of nine letters and digits, which some templates require."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_SHORT_ID))


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The JSON schema of each tool's parameters."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or ANY_OBJECT for function in functions}


def parser_maker(
    family: Family,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    parallel: bool = True,
    is_forced: bool = False,
) -> Callable[[], AnswerParser]:
    """What makes a parser for each choice of a request. Raises InvalidSchema: a strict tool cannot be checked.

    `prompt_ids` tell whether the prompt has opened reasoning; `tools`: that may be called, in OpenAI's form; `parallel` False: calls behind
    the first are dropped; `is_forced`: a grammar forces the calls.
    """
    schemas = schemas_of(tools) if family.reads_calls else {}
    checked = [] if is_forced else [tool["function"]["name"] for tool in tools if tool["function"].get("strict")]
    strict = {name: StrictSchema(name, schemas[name]) for name in checked if name in schemas}
    in_reasoning = opens_reasoning(family, tokenizer, prompt_ids)

    def make() -> AnswerParser:
        if not schemas and not family.reads_reasoning:
            return PlainParser(tokenizer)
        output = Output(family.marks, new_short_id if family.short_ids else new_call_id, None if parallel else 1)
        sink = Sink(family.marks, schemas, strict, is_forced=is_forced)
        reader = reader_of(family, output, sink, in_reasoning=in_reasoning)
        return MarkedParser(tokenizer, family.marks, output, reader)

    return make


class MarkedParser:
    """An `AnswerParser` that gives text and markers to a reader."""

    def __init__(self, tokenizer: Tokenizer, marks: Marks, output: Output, reader: AnswerReader) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._characters, self._output, self._reader = marks.characters, output, reader

    def push(self, token_id: int) -> AnswerPart:
        """See `AnswerParser`."""
        marker = self._characters.get(token_id)
        text = self._detokenizer.push(token_id) if marker is None else self._detokenizer.settle() + marker
        if text:
            self.feed(text)
        return self.take()

    def feed(self, text: str) -> None:
        """Add text in which markers are single characters."""
        self._reader.feed(text)

    def take(self) -> AnswerPart:
        """What became final since the last time."""
        return self._output.take()

    def flush(self) -> AnswerPart:
        """See `AnswerParser`."""
        if rest := self._detokenizer.flush():
            self._reader.feed(rest)
        self._reader.end()
        return self._output.take()
