"""The parts of an answer: content, reasoning, and calls of tools. Pure.

A parser gets the ids of an answer one after another and says what became final. Parts are never taken back. A broken
call becomes content: it is never an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer

_UNFINISHED = "\ufffd"


class CallPart(NamedTuple):
    """An addition to one call. The first part of a call has its id and name; `arguments` are the next characters of its JSON."""

    number: int
    """Of the call in its answer: 0, 1, ..."""
    arguments: str = ""
    id: str | None = None
    name: str | None = None


class AnswerPart(NamedTuple):
    """What became final."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()


NOTHING = AnswerPart()


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

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
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


def add_calls(calls: list[dict[str, Any]], parts: Iterable[CallPart]) -> None:
    """Append parts to calls in OpenAI's form."""
    for part in parts:
        if part.number == len(calls):
            calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
        calls[part.number]["function"]["arguments"] += part.arguments
