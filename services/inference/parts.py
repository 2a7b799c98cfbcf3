"""Turns the tokens of an answer into its parts (contracts/answers/parts.py). Pure.

A parser gets the ids of an answer one after another and says what became final. Parts are never taken back. A broken
call becomes content: it is never an error.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from tokenizers import Tokenizer

from contracts.answers.parts import NOTHING, AnswerPart

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
