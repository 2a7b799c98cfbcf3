"""`token_f1`: how many words answer and reference share, the best over several references.

F1 of precision and recall over bags of words, normalised as SQuAD's evaluation does (Rajpurkar et al. 2016, arXiv
1606.05250). Repeating a word, or saying everything, costs precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, Check, Context, Verifier, bad_reference, read_config, unlabelled
from rewards.verifiers.texts import read_references, squad_tokens

VERSION = 1


class Config(TaskSection):
    """What a task file may say."""

    characters: bool = False
    """Compare characters instead of words, for languages that write without spaces."""


def build(config: Mapping[str, Any], context: Context = Context()) -> Verifier:  # noqa: B008 immutable
    """See `Builder`. The reference is a text, or a JSON list of them."""
    del context
    rule = read_config(Config, config)

    def tokens(text: str) -> Sequence[str]:
        words = squad_tokens(text)
        return "".join(words) if rule.characters else words

    def check(answer: Answer) -> Check:
        if answer.reference is None:
            return unlabelled("no metadata.reference")
        try:
            references = [found for text in read_references(answer.reference) if (found := tokens(text))]
        except ValueError as error:
            return bad_reference(str(error))
        if not references:
            return bad_reference("metadata.reference has no words")
        given = tokens(answer.text)
        value = max(_f1(given, reference) for reference in references)
        return Check(value, reason="" if value else "no word of the reference")

    return check


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2.0 * shared / (len(given) + len(wanted))
