"""Checks of words, letters and language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from contracts.tasks.section import TaskSection
from examples.verifiers.instructions.rule import Count, Instruction, of_text
from rewards.verifiers.check import Answer
from rewards.verifiers.lookalikes import COMMAS, plain, readings

_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


class Keywords(TaskSection):
    """Words or phrases. Case is ignored, and parts of words do not match."""

    value: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _filled(self) -> Self:
        if not all(_plain(word).strip() for word in self.value):
            raise ValueError("a keyword is empty")
        return self


class Frequency(Count):
    """How often one word occurs."""

    word: str = Field(min_length=1)


class LetterFrequency(Count):
    """How often one letter occurs, in either case."""

    letter: str = Field(min_length=1, max_length=1)


class Language(TaskSection):
    """ISO 639-1, for example `de`."""

    value: str

    @field_validator("value")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in _identifier().labels:
            raise ValueError(f"language {value!r} is not one of {' '.join(sorted(_identifier().labels))}")
        return value


def occurrences(text: str, phrase: str) -> int:
    """How often a phrase occurs in a text as whole words. Case is ignored."""
    words = r"\s+".join(re.escape(word) for word in _plain(phrase).split())
    return len(re.findall(rf"(?<!\w){words}(?!\w)", _plain(text)))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", plain(text).casefold())


def _counts(text: str, wanted: str, count: Callable[[str], int]) -> list[int]:
    """The count in each reading of the text. A word in Latin letters is also counted in letters that look like them."""
    return [count(reading) for reading in (readings(text) if wanted.isascii() else (plain(text),))]


def _include(answer: Answer, rule: Keywords) -> str:
    missing = [word for word in rule.value if not min(_said(answer.text, word))]
    return f"{missing[0]!r} is missing" if missing else ""


def _exclude(answer: Answer, rule: Keywords) -> str:
    said = [word for word in rule.value if max(_said(answer.text, word))]
    return f"it says {said[0]!r}" if said else ""


def _said(text: str, word: str) -> list[int]:
    return _counts(text, word, lambda reading: occurrences(reading, word))


def _frequency(answer: Answer, rule: Frequency) -> str:
    problems = [rule.problem(count, f"times {rule.word!r}") for count in _said(answer.text, rule.word)]
    return next(filter(None, problems), "")


def _letters(answer: Answer, rule: LetterFrequency) -> str:
    letter = rule.letter.casefold()
    counts = _counts(answer.text, letter, lambda reading: reading.casefold().count(letter))
    return next(filter(None, (rule.problem(count, f"times {rule.letter!r}") for count in counts)), "")


def _no_commas(text: str) -> str:
    comma = next((letter for letter in text if letter in COMMAS), None)
    return f"it has {comma!r}" if comma else ""


def _language(answer: Answer, rule: Language) -> str:
    prose = _FENCED.sub(" ", answer.text)
    if not any(letter.isalpha() for letter in prose):
        return "it has no words"
    found, _ = _identifier().classify(prose)
    return "" if found == rule.value else f"it seems to be written in {found!r}"


@cache
def _identifier() -> Any:
    # Loading the model takes most of a second, so only tasks that check a language load it.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


INSTRUCTIONS = {
    "include_keywords": Instruction(Keywords, _include),
    "exclude_keywords": Instruction(Keywords, _exclude),
    "keyword_frequency": Instruction(Frequency, _frequency),
    "letter_frequency": Instruction(LetterFrequency, _letters),
    "no_commas": of_text(_no_commas),
    "language": Instruction(Language, _language),
}
