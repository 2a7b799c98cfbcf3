"""Parses a judge's reply. Pure. Anything but exactly one verdict counts as no verdict, never as 0 or the middle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewards.judges.prompt import without_thoughts

_MIN_MASS = 0.5
_MAX_REASON = 200
_VALUE = re.compile(r'"level"\s*:\s*"')


class ReplyToken(NamedTuple):
    """A token of the judge's reply, and the log-probs of the tokens that the model might have sampled there."""

    text: str
    alternatives: Mapping[str, float]


class JudgeVerdict(NamedTuple):
    """What a judge decided. `value` in [0, 1]: levels are evenly spaced; an expected level may lie between two."""

    value: float
    level: str
    reason: str


def parse_verdict(content: str, levels: Sequence[str], tokens: Sequence[ReplyToken] = ()) -> JudgeVerdict | None:
    """The verdict; None if the reply has no verdict or several different ones."""
    text = content.strip()
    if not text.startswith(("{", "`")):  # inside the JSON itself, thinking tags are quoted text
        text = without_thoughts(text)
    found = {_level_of(item["level"], levels): item for item in _objects(text) if "level" in item}
    if len(found) != 1:
        return None
    ((level, item),) = found.items()
    if level is None:
        return None
    reason = " ".join(str(item.get("reason", "")).split())[:_MAX_REASON]
    expected = expected_level(tokens, levels) if tokens else None
    value = level / (len(levels) - 1) if expected is None else expected
    return JudgeVerdict(value, levels[level], reason)


def parse_brief(content: str, levels: Sequence[str], tokens: Sequence[ReplyToken] = ()) -> JudgeVerdict | None:
    """Like `parse_verdict`, for a request that asked only for the level: a level without JSON is also accepted."""
    found = parse_verdict(content, levels, tokens)
    if found is None and (level := _level_of(without_thoughts(content).strip("\"'`*. \n"), levels)) is not None:
        return JudgeVerdict(level / (len(levels) - 1), levels[level], "")
    return found


def expected_level(tokens: Sequence[ReplyToken], levels: Sequence[str]) -> float | None:
    """The sum over k of p_k k / (K - 1), with p_k from the alternatives of the tokens that spell the level.

    None if there are no alternatives, or levels have less than half of the probability.
    """
    starts = [match.end() for match in _VALUE.finditer("".join(token.text for token in tokens))]
    if not starts:
        return None
    position, mass, spelled, weights = 0, 1.0, "", [0.0] * len(levels)
    for token in tokens:
        head = token.text[: max(0, starts[-1] - position)]
        position += len(token.text)
        if position <= starts[-1]:
            continue
        sampled = token.text[len(head) :]
        for text, logprob in token.alternatives.items():
            if text != token.text and text.startswith(head):
                matched = _meant(spelled + text[len(head) :], levels)
                if len(matched) == 1:
                    weights[matched[0]] += mass * math.exp(logprob)
        mass *= math.exp(token.alternatives.get(token.text, -math.inf))
        spelled += sampled
        matched = _meant(spelled, levels)
        if len(matched) == 1:
            weights[matched[0]] += mass
            break
        if not matched:
            break
    total = sum(weights)
    if total < _MIN_MASS:
        return None
    return min(1.0, sum(weight * k for k, weight in enumerate(weights)) / total / (len(levels) - 1))


def _meant(start: str, levels: Sequence[str]) -> list[int]:
    """Indices of the levels that begin with this text. After the closing quote, only the level itself matches."""
    text, quote, _ = start.partition('"')
    if quote:
        return [place for place, level in enumerate(levels) if level == text]
    return [place for place, level in enumerate(levels) if text and level.startswith(text)]


def _level_of(said: Any, levels: Sequence[str]) -> int | None:
    if isinstance(said, bool) or not isinstance(said, str | int):
        return None
    name = str(said).strip().casefold()
    if name in (names := [level.strip().casefold() for level in levels]):
        return names.index(name)
    return int(said) if isinstance(said, int) and 0 <= said < len(levels) else None


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Every outermost JSON object of a text. An object with a repeated name counts as one without a level."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique)
    start = text.find("{")
    while start >= 0:
        try:
            item, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield item
        start = text.find("{", end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    return dict(pairs) if len({*names}) == len(names) else {"level": None}
