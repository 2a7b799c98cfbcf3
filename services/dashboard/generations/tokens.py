"""The text of single tokens, without torch. The tokenizer of the base policy is loaded when the first answer is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
from huggingface_hub import hf_hub_download
from tokenizers import Tokenizer

from contracts.sampling import Span

MAX_TOKENS = 4000
INCOMPLETE = "\ufffd"
LIMITS = (0.9, 0.5, 0.2, 0.05)
"""Probabilities that separate the shades of tokens: shade 0 from the first one up, and so on; the last shade is below all."""

log = structlog.get_logger()
Decode = Callable[[Sequence[int]], str]


class AnswerToken(NamedTuple):
    """One token of an answer. `shade` None: there is no log-prob."""

    place: int
    id: int
    text: str
    logprob: float | None
    shade: int | None
    version: int | None

    @property
    def probability(self) -> float | None:
        """In [0, 1]."""
        return None if self.logprob is None else math.exp(min(0.0, self.logprob))

    @property
    def visible(self) -> str:
        """The text, with visible marks for line ends and unfinished characters."""
        return self.text.replace("\n", "↵\n") or "◌"


class TokenTexts:
    """Turns token ids of one base into texts."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._tokenizer: Tokenizer | None = None
        self.problem = ""
        """Why there are no texts; empty if there are."""

    def texts(self, ids: Sequence[int]) -> list[str] | None:
        """One text per id; None if the tokenizer cannot be loaded."""
        if self._tokenizer is None:
            try:
                folder = Path(self._base)
                path = folder / "tokenizer.json" if folder.is_dir() else hf_hub_download(self._base, "tokenizer.json")
                self._tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # noqa: BLE001 `tokenizers` raises bare Exception, the hub a dozen kinds
                self.problem = f"the tokenizer of {self._base} cannot be loaded: {error}"
                log.warning("no tokenizer", base=self._base, reason=str(error))
                return None
        tokenizer, self.problem = self._tokenizer, ""
        return pieces(ids, lambda some: str(tokenizer.decode(list(some), skip_special_tokens=False)))


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """What each token adds to the text. If a character needs several tokens, the last one adds it.

    Each token is decoded together with the piece before it, because the first token of a text can lose its space.
    """
    texts: list[str] = []
    before, start = 0, 0
    for place in range(len(ids)):
        known, longer = decode(ids[before:start]), decode(ids[before : place + 1])
        if longer.endswith(INCOMPLETE) and place + 1 < len(ids) and place - start < 4:  # noqa: PLR2004 bytes in a character
            texts.append("")
            continue
        texts.append(longer[len(known) :])
        before, start = start, place + 1
    return texts


def tokens(
    ids: Sequence[int], logprobs: Sequence[float], spans: Sequence[Span], texts: Sequence[str] | None
) -> list[AnswerToken]:
    """The first `MAX_TOKENS` tokens of an answer; without texts, the ids are shown instead."""
    shown = []
    for place, number in enumerate(ids[:MAX_TOKENS]):
        logprob = logprobs[place] if place < len(logprobs) else None
        made_by = [span.version for span in spans if span.start <= place]
        text = texts[place] if texts is not None else f" {number}"
        shown.append(AnswerToken(place, number, text, logprob, shade(logprob), made_by[-1] if made_by else None))
    return shown


def shade(logprob: float | None) -> int | None:
    """The shade of a token, see `LIMITS`; None without a log-prob."""
    if logprob is None or math.isnan(logprob):
        return None
    probability = math.exp(min(0.0, logprob))
    return next((place for place, limit in enumerate(LIMITS) if probability >= limit), len(LIMITS))
