"""`exact`: the answer is the text of `metadata.reference`, after the normalisation that the task file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, Check, Context, Verifier, bad_reference, read_config, right, unlabelled
from rewards.verifiers.texts import read_references, without_articles, without_punctuation

VERSION = 1


class Config(TaskSection):
    """What is overlooked, on both sides."""

    strip: bool = True
    """White space at both ends."""
    casefold: bool = False
    """Capital letters."""
    punctuation: bool = False
    """Punctuation, anywhere."""
    articles: bool = False
    """The words a, an, the."""
    many: bool = False
    """The reference is a JSON list of texts, and any of them will do."""


def build(config: Mapping[str, Any], context: Context = Context()) -> Verifier:  # noqa: B008 immutable
    """See `Builder`."""
    del context
    rule = read_config(Config, config)

    def check(answer: Answer) -> Check:
        if answer.reference is None:
            return unlabelled("no metadata.reference")
        try:
            references = read_references(answer.reference) if rule.many else [answer.reference]
        except ValueError as error:
            return bad_reference(str(error))
        # What normalises to nothing would pay for an empty answer.
        wanted = {text for reference in references if (text := _normalised(reference, rule)).strip()}
        if not wanted:
            return bad_reference("metadata.reference is empty, or normalises to nothing")
        return right() if _normalised(answer.text, rule) in wanted else Check(0.0, reason="not the reference")

    return check


def _normalised(text: str, rule: Config) -> str:
    if rule.casefold:
        text = text.casefold()
    if rule.punctuation:
        text = without_punctuation(text)
    if rule.articles:
        text = without_articles(text)
    if rule.punctuation or rule.articles:
        text = " ".join(text.split())
    return text.strip() if rule.strip else text
