"""`token_f1`: the share of words that answer and reference have in common; with several references, the best of them.

F1 of precision and recall over bags of words, normalised as SQuAD's evaluation does (Rajpurkar et al. 2016, arXiv
1606.05250). Repeating a word, or saying everything, costs precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, BadReference, Check, Verifier, read_config, with_reference
from rewards.verifiers.exact import read_references, squad_tokens

VERSION = 2


class Config(TaskSection):
    """What a task file may say."""

    characters: bool = False
    """Compare characters instead of words, for languages that write without spaces."""


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`. The reference is a text, or a JSON list of them."""
    rule = read_config(Config, config)

    def tokens(text: str) -> Sequence[str]:
        words = squad_tokens(text)
        return "".join(words) if rule.characters else words

    def check(answer: Answer, reference: str) -> Check:
        references = [found for text in read_references(reference) if (found := tokens(text))]
        if not references:
            raise BadReference("metadata.reference has no words")
        given = tokens(answer.text)
        # 2 p r / (p + r), with precision p and recall r.
        value = max(
            2.0 * sum((Counter(given) & Counter(wanted)).values()) / (len(given) + len(wanted)) for wanted in references
        )
        return Check(value, reason="" if value else "no word of the reference")

    return with_reference(check)
