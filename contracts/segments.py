"""What the trainer learns from an answer: its prompt and completion as one run of tokens. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from contracts.errors import InvalidRecord
from contracts.records import Experience, Generation, GenerationBody, Segment, decode, pack_floats

BYTES_PER_TOKEN_ID = 4


def segment_of(turn: Generation, body: GenerationBody) -> Segment:
    """Prompt and completion of a turn as one run of tokens; the loss mask covers the completion alone."""
    num_prompt, num_completion = (len(ids) // BYTES_PER_TOKEN_ID for ids in (body.prompt_ids, body.completion_ids))
    return Segment(
        token_ids=body.prompt_ids + body.completion_ids,
        loss_mask=bytes(num_prompt) + b"\x01" * num_completion,
        logprobs=pack_floats([0.0] * num_prompt) + body.logprobs,
        spans=turn.spans,
        sampling=turn.sampling,
        experts=body.experts,
        expert_shape=body.expert_shape,
        support=body.support,
    )


def with_answer(experience: Experience, turn: Generation, body: GenerationBody) -> Experience:
    """An experience with its tokens, and with what else its answer says of them."""
    return replace(
        experience,
        segments=(segment_of(turn, body),),
        generated_at=turn.created_at,
        engine=turn.engine,
        dtype=turn.dtype,
        origin=turn.provided.origin if turn.provided else "",
    )


def whole(experience: Experience, answer: bytes | None) -> Experience:
    """An experience with the answer that it points to; None: nobody has it any more. Raises InvalidRecord: it is another one."""
    if experience.segments or experience.source is None or answer is None:
        return experience
    turn = decode(Generation, answer)
    if turn.key != experience.key:
        raise InvalidRecord(f"Experience {experience.key} points to the answer {turn.key}")
    return with_answer(experience, turn, turn.open())


def is_body_lost(experience: Experience) -> bool:
    """True if its tokens were in the log and are there no longer, nor in the database."""
    return experience.source is not None and not experience.segments
