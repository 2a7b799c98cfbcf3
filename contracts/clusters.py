"""Coarse topics of prompts: the same in every process, without an encoder and without state.

Topics that a task defines by examples are matched by shared n-grams. All other prompts fall into sixteen buckets by a SimHash of
their longer words (Charikar 2002).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

_NUM_BITS = 4
_LONGEST = 2_000
_SHORTEST_WORD = 4
_GRAM = 4
_FLOOR = 0.15
_WORD = re.compile(r"\w+")


def words_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The user's text, over all turns."""
    return "\n".join(_text(message.get("content")) for message in messages if message.get("role") == "user")


class Clusters:
    """Finds the cluster of a prompt; build one per task. `topics`: names and their examples."""

    def __init__(self, topics: Mapping[str, Iterable[str]]) -> None:
        self._topics = {name: _unit(Counter(_grams(" \n ".join(examples)))) for name, examples in topics.items()}

    def of(self, text: str) -> str:
        """A topic's name, or `other-0` to `other-f`."""
        text = text[:_LONGEST].lower()
        if self._topics:
            own = _unit(Counter(_grams(text)))
            nearness = {
                name: sum(weight * topic.get(gram, 0.0) for gram, weight in own.items())
                for name, topic in self._topics.items()
            }
            best = max(nearness, key=lambda name: nearness[name])
            if nearness[best] >= _FLOOR:
                return best
        return f"other-{_bucket(text):x}"


def _bucket(text: str) -> int:
    votes = [0] * _NUM_BITS
    for word in _WORD.findall(text):
        if len(word) >= _SHORTEST_WORD:
            bits = crc32(word.encode())
            for place in range(_NUM_BITS):
                votes[place] += 1 if bits >> (7 * place) & 1 else -1
    return sum(1 << place for place, vote in enumerate(votes) if vote > 0)


def _grams(text: str) -> list[str]:
    padded = f" {' '.join(_WORD.findall(text.lower()))} "
    return [padded[start : start + _GRAM] for start in range(len(padded) - _GRAM + 1)]


def _unit(counts: Counter[str]) -> dict[str, float]:
    # Square root: a word that occurs ten times does not count ten times as much.
    length = math.sqrt(sum(counts.values())) or 1.0
    return {gram: math.sqrt(count) / length for gram, count in counts.items()}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
