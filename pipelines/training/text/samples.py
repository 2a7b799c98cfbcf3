"""Text to learn from, as token ids: it needs no log-probs of whoever wrote it. Pure, without torch.

kind      learns                                        loss, see `losses`
target    what should have been answered                weighted cross-entropy
pair      that one answer is better than another        DPO against the anchor
thumb     that an answer is good, or bad                KTO against the anchor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rapidfuzz.distance import Levenshtein

Kind = Literal["target", "pair", "thumb"]
KEPT = 0.25
"""The weight of a token that a user kept. Those that a user changed weigh 1."""


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """One lesson in text. Ids are of the trained policy's tokenizer; completions end with the token that ends an answer."""

    key: str
    """Of the sample that it belongs to: it is learned with it, or not at all."""
    revision: int
    kind: Kind
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    """What a target or a pair prefers; the answer itself of a thumb. Not empty."""
    rejected_ids: tuple[int, ...] | None = None
    """Of a pair alone, not empty."""
    token_weights: tuple[float, ...] = ()
    """Of a target: the weight of each chosen token, in [0, 1] and not all 0; empty: 1 each."""
    weight: float = 1.0
    """Of the whole sample: its trust times the weight of its stream."""
    is_good: bool = True
    """Of a thumb."""


class TextRow(NamedTuple):
    """One sequence to score. Its figures are sums over the completion's tokens, each times its weight."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    token_weights: tuple[float, ...]

    @property
    def total(self) -> float:
        """The sum of the tokens' weights."""
        return sum(self.token_weights)


def token_weights(answer_ids: Sequence[int], edited_ids: Sequence[int]) -> tuple[float, ...]:
    """The weight of each token of an edit: 1 where the user changed the answer, `KEPT` where the answer's token stayed.

    The token after something that was deleted was changed too: it is what the user wanted in that place.
    """
    found = [1.0] * len(edited_ids)
    for step in Levenshtein.opcodes(answer_ids, edited_ids):
        if step.tag == "equal":
            found[step.dest_start : step.dest_end] = [KEPT] * (step.dest_end - step.dest_start)
    for step in Levenshtein.opcodes(answer_ids, edited_ids):
        if step.tag == "delete" and step.dest_start < len(found):
            found[step.dest_start] = 1.0
    return tuple(found)


def rows_of(samples: Sequence[TextSample]) -> list[TextRow]:
    """The sequences of the samples in their order: one each, of a pair the chosen one and then the rejected one."""
    rows = []
    for item in samples:
        weights = item.token_weights or (1.0,) * len(item.chosen_ids)
        rows.append(TextRow(item.prompt_ids, item.chosen_ids, weights))
        if item.rejected_ids is not None:
            rows.append(TextRow(item.prompt_ids, item.rejected_ids, (1.0,) * len(item.rejected_ids)))
    return rows


def mismatched_rows(samples: Sequence[TextSample]) -> list[TextRow]:
    """Each thumb's prompt with the answer of the thumb before it, as trl: what `losses.baseline_of` measures.

    None for a lone thumb: its own answer would be its baseline.
    """
    thumbs = [item for item in samples if item.kind == "thumb"]
    if len(thumbs) == 1:
        return []
    others = [*thumbs[-1:], *thumbs[:-1]]
    return [
        TextRow(item.prompt_ids, other.chosen_ids, (1.0,) * len(other.chosen_ids))
        for item, other in zip(thumbs, others, strict=True)
    ]
