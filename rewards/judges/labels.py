"""Labels to measure a judge against: JSON lines that people wrote.

{"prompt": "..." or [messages], "completion": "...", "label": "yes"}            a level by name, or counted from 0
{"prompt": ..., "completion": ..., "follow_up": "...", "label": ...}            for a judge of the next message
{"prompt": ..., "pair": ["...", "..."], "better": "first" | "second" | "tie"}   two answers, for comparisons
Each may have a `reference`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from contracts.errors import InvalidValue
from contracts.files import read_small
from contracts.tasks.judges import PAIRWISE_LEVELS, JudgeRule
from rewards.verifiers.check import Answer

_BETTER = {0: "first", 1: "second"}


class Labelled(NamedTuple):
    """An answer with the index of its level. For a pair, the index is that of `better` in `PAIRWISE_LEVELS`."""

    answer: Answer
    level: int


class Labels(NamedTuple):
    """The content of a file."""

    items: tuple[Labelled, ...]
    pairs: tuple[Labelled, ...]
    """Each has the second answer as its only sibling."""
    sha256: str


def read_labels(path: Path, rule: JudgeRule) -> Labels:
    """Read and check a file of labels. Raises InvalidValue: with file and line of the first mistake, or if there is nothing to measure this judge on."""
    try:
        content = read_small(path)
    except OSError as error:
        raise InvalidValue(f"{path}: {error.strerror}") from error
    items, pairs = [], []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            if not isinstance(item, dict):
                raise ValueError("a label is a JSON object")  # noqa: TRY004, TRY301 the line is added below
            if "pair" in item:
                pairs.append(_pair(item))
            else:
                items.append(_item(item, rule))
        except (ValueError, RecursionError) as error:
            raise InvalidValue(f"{path}:{number}: {error}") from error
    is_pairwise = rule.protocol == "pairwise"
    if not (pairs if is_pairwise else items):
        form = '"pair": [..., ...], "better": "first"' if is_pairwise else '"completion", "label"'
        raise InvalidValue(f"{path}: nothing to measure a {rule.protocol} judge on; it needs lines with {form}")
    return Labels(tuple(items), tuple(pairs), hashlib.sha256(content).hexdigest())


def _item(item: dict[str, Any], rule: JudgeRule) -> Labelled:
    text = _text(item, "completion")
    metadata = _metadata(item)
    if rule.about == "follow_up":
        metadata["follow_up"] = _text(item, "follow_up")
    return Labelled(Answer(text, metadata, _messages(item)), _level(item.get("label"), rule.levels))


def _pair(item: dict[str, Any]) -> Labelled:
    pair = item["pair"]
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):  # noqa: PLR2004
        raise ValueError("`pair` is two texts")
    better = item.get("better")
    better = _BETTER.get(better, better) if isinstance(better, int) and not isinstance(better, bool) else better
    if better not in PAIRWISE_LEVELS:
        raise ValueError(f"`better` is first, second or tie, not {better!r}")
    answer = Answer(pair[0], _metadata(item), _messages(item), siblings=(pair[1],))
    return Labelled(answer, PAIRWISE_LEVELS.index(better))


def _level(label: Any, levels: tuple[str, ...]) -> int:
    if isinstance(label, bool) and len(levels) == 2:  # noqa: PLR2004 yes or no
        return int(label)
    if (name := str(label).strip().casefold()) in (names := [level.strip().casefold() for level in levels]):
        return names.index(name)
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(levels):
        return label
    raise ValueError(f"`label` is one of {', '.join(levels)}, or its place from 0, not {label!r}")


def _messages(item: dict[str, Any]) -> list[dict[str, Any]]:
    prompt = item.get("prompt")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt):
        return prompt
    raise ValueError("`prompt` is a text, or a list of messages")


def _metadata(item: dict[str, Any]) -> dict[str, str]:
    return {"reference": _text(item, "reference")} if item.get("reference") is not None else {}


def _text(item: dict[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise ValueError(f"`{name}` is missing, or not a text")  # noqa: TRY004 as above
    return str(item[name])
