r"""`choice`: the answer picks one letter, and it is that of `metadata.reference`.

A letter counts where the answer commits to it: after "answer is", "Answer:" and similar words, in \boxed{}, alone on a line, or
as "B) ..." at the very beginning. Two different letters are two answers, and wrong. A letter is also wrong if the answer withdraws it
or adds another ("A (or B)", "A. B is also right"): see `hedges`. "A, not B" and "A, because B is wrong" are explanations, and pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import re2
from pydantic import Field, model_validator

from contracts.errors import InvalidTask
from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, BadReference, Check, Verifier, read_config, right, with_reference, wrong
from rewards.verifiers.hedges import TextAfterAnswer, is_denied, is_disowned, is_withdrawn
from rewards.verifiers.lookalikes import as_displayed
from rewards.verifiers.regex import compile_pattern

VERSION = 3
_STRETCH = 120
_LEAD = (
    r"(?:(?i:\b(?:answer|choice|option|result|solution)\b[\"']?"
    r"(?:\s*(?:\bis\b|\bare\b|\bwould be\b|\bshould be\b|\bmust be\b|[:=]|-\s|\*\*|__))+)"
    r"|(?i:\bI(?:'d|'ll| would| will)? (?:choose|pick|select|go with)\s)|<answer>)"
)
_CORRECT = r"\s+is\s+(?:the\s+)?(?i:correct|right|best)\b"
_ARTICLE = re.compile(r"[AaI][ \t]+(?!is\b|are\b|or\b|and\b|also\b|too\b|could\b|may\b|might\b)[a-z]{2,}")
_OPENING = r"[\s*_(\[{\"'`$]*"
_CLOSING = r"[)\]}*_\"'`$.:]*"
_NAMING = r"(?:(?i:option|choice|letter)\s+)?(?:\\[a-z]+\{)*"
_FURTHER = (
    r"[\s)\]}*_\"'`$]*(?:,|;|/|&|\||\+|\bor\b|\band\b)+(?:\s*\b(?:or|and|maybe|possibly|perhaps|also|even|option)\b)*"
)


class Config(TaskSection):
    """Settings in the task file."""

    choices: tuple[str, ...] = Field(default=("A", "B", "C", "D"), min_length=2)
    """The letters, or short words."""
    patterns: tuple[str, ...] = ()
    """RE2 patterns that find the letter instead of the usual places. Each has one group, the letter."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({choice.casefold() for choice in self.choices}) < len(self.choices):
            raise ValueError("two choices differ at most in capital letters")
        if odd := [choice for choice in self.choices if not choice.isalnum() or not choice.isascii()]:
            raise ValueError(f"choice {odd[0]!r} is not made of ASCII letters and digits")
        return self


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    rule = read_config(Config, config)
    by_folded = {choice.casefold(): choice for choice in rule.choices}
    find = _finder(rule)

    def check(answer: Answer, reference: str) -> Check:
        wanted = by_folded.get(reference.strip().strip("().").casefold())
        if wanted is None:
            raise BadReference(f"metadata.reference {reference[:40]!r} is not one of {', '.join(rule.choices)}")
        text = answer.text.replace("\u00a0", " ")
        found = find(text)
        if (
            found and not text.isascii()
        ):  # A letter of another script is not a choice, but a look-alike can be a second answer.
            found |= find(as_displayed(text))
        if not found:
            return wrong("it picks nothing")
        if len(found) > 1:
            return wrong(f"it picks {len(found)}: {', '.join(sorted(found))}")
        return right() if found == {wanted} else Check(0.0, reason=f"it picks {min(found)}")

    return with_reference(check)


def explain(answer: Answer, config: Mapping[str, Any]) -> dict[str, str]:
    """The letters that the answer picks, and that of the reference."""
    rule = read_config(Config, config)
    found = _finder(rule)(answer.text.replace("\u00a0", " "))
    return {"answer": ", ".join(sorted(found)) or "nothing", "reference": (answer.reference or "").strip()}


def _finder(rule: Config) -> Callable[[str], set[str]]:
    by_folded = {choice.casefold(): choice for choice in rule.choices}
    return _by_patterns(rule, by_folded) if rule.patterns else _by_places(rule, by_folded)


def _by_patterns(rule: Config, by_folded: Mapping[str, str]) -> Callable[[str], set[str]]:
    patterns = [compile_pattern(pattern, f"patterns.{index}") for index, pattern in enumerate(rule.patterns)]
    for index, pattern in enumerate(patterns):
        if pattern.groups != 1:
            raise InvalidTask(f"it needs one group, the letter, and has {pattern.groups}", param=f"patterns.{index}")

    def find(text: str) -> set[str]:
        groups = [match.group(1) or "" for pattern in patterns for match in pattern.finditer(_encodable(text))]
        return {by_folded[group.strip().casefold()] for group in groups if group.strip().casefold() in by_folded}

    return find


def _by_places(rule: Config, by_folded: Mapping[str, str]) -> Callable[[str], set[str]]:
    letters = "|".join(re2.escape(choice) for choice in sorted(rule.choices, key=len, reverse=True))
    # Within a sentence, case matters: "the answer is a guess" does not pick A.
    anchored = re2.compile(rf"(?:{_LEAD}{_OPENING}{_NAMING}|\\boxed\{{\s*(?:\\[a-z]+\{{)*){_OPENING}({letters})\b")
    further = re2.compile(rf"{_FURTHER}{_OPENING}({letters})\b")
    claimed = re2.compile(
        rf"(?m)(?:^|[.!?]\s){_OPENING}{_NAMING}({letters}){_CLOSING}{_CORRECT}|{_LEAD}{_OPENING}((?i:{letters})){_CLOSING}\s*$"
    )
    alone = re2.compile(rf"(?mi)^{_OPENING}{_NAMING}({letters}){_CLOSING}\s*$")
    leading = re2.compile(rf"(?m)^[\s*_(\[]*({letters})[*_]*[)\].:][*_]*[ \t]")

    every = re2.compile(rf"\b({letters})\b")

    def find(text: str) -> set[str]:
        text = _encodable(text)
        places = [
            (match.start(1), match.end(1), by_folded[match.group(1).casefold()]) for match in alone.finditer(text)
        ]
        for match in claimed.finditer(text):
            group = 1 if match.group(1) else 2
            if not is_disowned(text, match.start()):
                places.append((match.start(group), match.end(group), by_folded[match.group(group).casefold()]))
        for match in anchored.finditer(text):
            if _goes_on(text, match.end()) or is_disowned(text, match.start()):
                continue
            places.append((match.start(1), match.end(1), match.group(1)))
            place, beyond = match.end(), TextAfterAnswer()
            # In stretches, because RE2 encodes the whole text again for each match.
            while (more := further.match(text[place : place + _STRETCH])) is not None:
                if beyond.is_another(text[place : place + more.start(1)], text[place + more.end(1) : place + _STRETCH]):
                    places.append((place + more.start(1), place + more.end(1), more.group(1)))
                place += more.end()
        if not places and leading.match(text.lstrip()):
            places = [(match.start(1), match.end(1), match.group(1)) for match in leading.finditer(text)]
        found = {letter for _, _, letter in places}
        return found | _beside(text, max(places), every) if len(found) == 1 else found

    return find


def _beside(text: str, last: tuple[int, int, str], every: Any) -> set[str]:
    """Letters after the last one that are further answers. If the last one is withdrawn, two values that make the answer wrong."""
    start, end, letter = last
    if is_denied(text, start) or is_withdrawn(text, end):
        return {letter, f"not {letter}"}
    rest = text[end:]
    found, place, beyond = set(), 0, TextAfterAnswer()
    for match in every.finditer(rest):
        gap, behind = rest[place : match.start()], rest[match.end() : match.end() + _STRETCH]
        if (
            match.group(1) == letter
            or _goes_on(rest, match.end())
            or (gap.strip(" ") and _ARTICLE.match(match.group(1) + behind))
        ):
            continue
        if beyond.is_another(gap, behind):
            found.add(match.group(1))
        place = match.end()
    return found


def _goes_on(text: str, place: int) -> bool:
    after = text[place : place + 2]
    return after[:1].isalpha() or (after[:1] in {"'", "\u2019", "-"} and after[1:].isalpha())


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()
