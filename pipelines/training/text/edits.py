"""From an answer that a user edited, or spoke of, to text samples: the edit takes the answer's place after the answer's own prompt ids.

Only the edited completion becomes tokens here, as the model would have sampled it: the tokenizer of the base policy, without special tokens,
then the token that ends an answer. No text becomes a control token: a user who writes one teaches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog
from tokenizers import Tokenizer

from contracts.files import read_small
from contracts.records import Experience, Streams
from pipelines.training.text.samples import KEPT, TextSample, token_weights

log = structlog.get_logger()

NO_TOKENIZER = "no_tokenizer"


class FoundText(NamedTuple):
    """What an answer teaches in text, and why its edit teaches nothing; empty if it does, or if there is none."""

    samples: Sequence[TextSample] = ()
    refused: str = ""


class AnswerTokenizer:
    """Completions of one policy as token ids."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        """`end_ids`: those that end an answer. Without a choice of its own, an answer gets the first."""
        self._tokenizer, self._end_ids = tokenizer, tuple(end_ids)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder()
        # Some vocabularies add runs of white space, which are text.
        self._control_ids = {number for number, token in added.items() if token.content.strip()}

    @classmethod
    def of(cls, folder: Path) -> AnswerTokenizer | None:
        """The one of a base policy's folder; None if it has no files to make one of."""
        try:
            tokenizer = Tokenizer.from_str(read_small(folder / "tokenizer.json", 2**28).decode())
            ends = json.loads(read_small(folder / "generation_config.json")).get("eos_token_id")
            return cls(tokenizer, ends if isinstance(ends, list) else [] if ends is None else [ends])
        except Exception as error:  # noqa: BLE001 the tokenizer's library raises nothing more specific
            log.warning(
                "no text is learned: the base policy has no tokenizer here", base=str(folder), reason=str(error)
            )
            return None

    def completion_ids(self, text: str, answer_ids: Sequence[int] = ()) -> tuple[tuple[int, ...], str]:
        """The ids of a whole answer with this text, and why there are none. `answer_ids`: of the answer that it replaces, whose end it keeps."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(ids):
            return (), "edit_with_control_tokens"
        if self._tokenizer.decode(ids, skip_special_tokens=False) != text:
            return (), "edit_outside_vocabulary"
        if not self._end_ids:
            return (), "no_end_token"
        if not self._control_ids.isdisjoint(answer_ids[:-1]):
            return (), "edit_of_reasoning"  # or of another part that has marks: the edit would be learned without them
        end = answer_ids[-1] if answer_ids and answer_ids[-1] in self._end_ids else self._end_ids[0]
        return (*ids, end), ""


def text_of(experience: Experience, tokenizer: AnswerTokenizer | None, max_length: int) -> FoundText:
    """The text samples of an experience whose tokens are there. `max_length`: the context in tokens, prompt included."""
    streams = experience.streams
    if streams is None:
        return FoundText()
    segment = experience.segments[0]
    ids = np.frombuffer(segment.token_ids, "<i4").tolist()
    start = segment.loss_mask.index(1)
    prompt_ids, answer_ids = tuple(ids[:start]), tuple(ids[start:])
    if not streams.edit:
        return FoundText(_of_answer(experience, streams, prompt_ids, answer_ids), streams.refused)
    if tokenizer is None:
        return FoundText((), NO_TOKENIZER)
    edited_ids, refused = tokenizer.completion_ids(streams.edit, answer_ids)
    if not refused and len(prompt_ids) + len(edited_ids) > max_length:
        refused = "edit_beyond_context"
    if not refused and edited_ids == answer_ids:
        refused = "edit_equals_answer"
    return (
        FoundText((), refused)
        if refused
        else FoundText(_of_edit(experience, streams, prompt_ids, answer_ids, edited_ids))
    )


def _of_answer(
    experience: Experience, streams: Streams, prompt_ids: tuple[int, ...], answer_ids: tuple[int, ...]
) -> list[TextSample]:
    """Of an answer that nobody edited: what users said of it. A good one is a target too, all of it kept, unless its reward teaches that."""
    if streams.is_good is None:
        return []
    thumb = TextSample(
        key=experience.key, revision=experience.revision, kind="thumb", prompt_ids=prompt_ids, chosen_ids=answer_ids,
        weight=experience.weight * streams.thumb, is_good=streams.is_good,
    )  # fmt: skip
    is_target = streams.is_good and not streams.rl
    target = replace(
        thumb, kind="target", token_weights=(KEPT,) * len(answer_ids), weight=experience.weight * streams.ce * is_target
    )
    return [item for item in (target, thumb) if item.weight > 0]


def _of_edit(
    experience: Experience,
    streams: Streams,
    prompt_ids: tuple[int, ...],
    answer_ids: tuple[int, ...],
    edited_ids: tuple[int, ...],
) -> list[TextSample]:
    target = TextSample(
        key=experience.key, revision=experience.revision, kind="target", prompt_ids=prompt_ids, chosen_ids=edited_ids,
        token_weights=token_weights(answer_ids, edited_ids), weight=experience.weight * streams.ce,
    )  # fmt: skip
    pair = TextSample(
        key=experience.key, revision=experience.revision, kind="pair", prompt_ids=prompt_ids, chosen_ids=edited_ids,
        rejected_ids=answer_ids, weight=experience.weight * streams.pair,
    )  # fmt: skip
    return [item for item in (target, pair) if item.weight > 0]
