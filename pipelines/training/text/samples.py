"""Text to learn from, as token ids: it needs no log-probs of whoever wrote it. Pure, without torch.

kind      learns                                        loss, see `losses`
target    what should have been answered                weighted cross-entropy
pair      that one answer is better than another        DPO against the anchor
thumb     that an answer is good, or bad                KTO against the anchor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rapidfuzz.distance import Levenshtein

from contracts.records import Segment, pack_floats, pack_ids
from contracts.sampling import Sampling

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


@dataclass(frozen=True)
class TextBatch:
    """The text of a step, or of a part of it."""

    samples: Sequence[TextSample] = ()
    counts: Mapping[Kind, float] = field(default_factory=dict)
    """What the loss of each kind is divided by: of targets the sum of their tokens' weights, of the others their number. It is counted once,
    when a batch is drawn: what leaves the batch later makes it weaker, not the others stronger."""

    @classmethod
    def of(cls, samples: Sequence[TextSample]) -> TextBatch:
        """A whole batch."""
        counts: dict[Kind, float] = {}
        for item in samples:
            one = sum(item.token_weights) or float(len(item.chosen_ids)) if item.kind == "target" else 1.0
            counts[item.kind] = counts.get(item.kind, 0.0) + one
        return cls(samples, counts)

    @classmethod
    def joined(cls, parts: Sequence[TextBatch]) -> TextBatch:
        """Parts of one batch."""
        return cls(
            [item for part in parts for item in part.samples], next((each.counts for each in parts if each.counts), {})
        )


NO_TEXT = TextBatch()


class TextRow(NamedTuple):
    """One sequence to score. Its figures are sums over the completion's tokens, each times its weight."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    token_weights: tuple[float, ...]

    @property
    def num_tokens(self) -> int:
        """Prompt included."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As micro-batches take it: each token's weight stands where an answer has its logged log-prob."""
        num_prompt, num = len(self.prompt_ids), len(self.completion_ids)
        return (
            Segment(
                token_ids=pack_ids([*self.prompt_ids, *self.completion_ids]),
                loss_mask=bytes(num_prompt) + b"\x01" * num,
                logprobs=pack_floats([0.0] * num_prompt + [*self.token_weights]),
                spans=(),
                sampling=Sampling(temperature=1.0, max_tokens=num),
            ),
        )


def token_weights(answer_ids: Sequence[int], edited_ids: Sequence[int]) -> tuple[float, ...]:
    """The weight of each token of an edit: 1 where the user changed the answer, `KEPT` where the answer's token stayed.

    The token after something that was deleted was changed too: it is what the user wanted in that place.
    """
    found, steps = [1.0] * len(edited_ids), Levenshtein.opcodes(answer_ids, edited_ids)
    for step in steps:
        if step.tag == "equal":
            found[step.dest_start : step.dest_end] = [KEPT] * (step.dest_end - step.dest_start)
    for step in steps:
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
