"""Markers: strings that open and close calls and reasoning, most of them tokens of their own. Pure.

Where a marker is a token, only the token counts; the same characters made of other tokens are text. Inside the parsers a marker
token is one character that no text can contain (a lone surrogate), so that a search finds it and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

_FIRST = 0xD800
MARK = "[\\ud800-\\udbff]"
"""A regular expression for any marker that is a token."""


class Marks:
    """The markers of one family in one tokenizer, whose added tokens are given by text. `characters`: by token id."""

    def __init__(self, added_tokens: Mapping[str, int], markers: Iterable[str]) -> None:
        self._ids = {text: added_tokens[text] for text in dict.fromkeys(markers) if text in added_tokens}
        self._characters = {text: chr(_FIRST + place) for place, text in enumerate(self._ids)}
        self.characters = {self._ids[text]: character for text, character in self._characters.items()}
        self._texts = str.maketrans({character: text for text, character in self._characters.items()})

    def __getitem__(self, marker: str) -> str:
        """What a parser searches for."""
        return self._characters.get(marker, marker)

    def all(self, text: str) -> str:
        """A text with all markers in it replaced by what a parser searches for."""
        for marker in sorted(self._characters, key=len, reverse=True):
            text = text.replace(marker, self._characters[marker])
        return text

    def visible(self, text: str) -> str:
        """A text with markers as people write them."""
        return text.translate(self._texts) if self._ids else text

    def is_token(self, marker: str) -> bool:
        """Whether this tokenizer has a token for it."""
        return marker in self._ids

    def text_until(self, rule: str, marker: str, most_tokens: int | None = None) -> str:
        """A rule of a grammar: any text, and the marker that ends it, at the latest after `most_tokens` if the marker is a token.

        Where it is text, llguidance would go on without it.
        """
        if marker not in self._ids:
            return f"{rule}[suffix={self.lark(marker)}]: /(?s:.*)/"
        if most_tokens is None:
            return f"{rule}: /(?s:.*)/ {self.lark(marker)}"
        return f"{rule}: {rule}_text {self.lark(marker)}\n{rule}_text[max_tokens={most_tokens}]: /(?s:.*)/"

    def lark(self, marker: str) -> str:
        """The marker in a grammar: its token, or its characters."""
        number = self._ids.get(marker)
        return json.dumps(marker, ensure_ascii=False) if number is None else f"<[{number}]>"
