"""Models that break on certain tokens, and corpora with samples that cannot be learned from."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch

from contracts.records import Experience, pack_floats, pack_ids
from contracts.sampling import Span
from policy.logprobs import TokenScores
from tests.unit.pipelines.training.builders import VOCABULARY, experience, random_key, segment, tiny_model

RAISES, NO_MEMORY, NO_NUMBER, DEADLY = 44, 45, 46, 47
"""Tokens that good samples never contain."""
FIRST_BROKEN = RAISES


class RowError(Exception):
    """A bug that only some data triggers."""


def breaking_model(capacity: int | None = None) -> Any:
    """The tiny model; a forward pass with certain tokens, or of more packed tokens than `capacity`, fails."""
    model = tiny_model()
    model.register_forward_pre_hook(_break(capacity))
    model.register_forward_hook(_spoil)
    return model


def _break(capacity: int | None) -> Callable[[Any, tuple[Any, ...]], None]:
    def hook(_module: Any, arguments: tuple[Any, ...]) -> None:
        if not arguments:  # a trial of the model that scores no rows
            return
        packing, _, labels, *_ = arguments
        ids = torch.cat([packing.ids_N, labels])
        if (ids == DEADLY).any():
            os._exit(9)
        if (ids == RAISES).any():
            raise RowError("a row that the code did not expect")
        if (ids == NO_MEMORY).any():
            raise MemoryError
        if capacity is not None and packing.ids_N.numel() > capacity:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    return hook


def _spoil(_module: Any, arguments: tuple[Any, ...], scores: TokenScores) -> TokenScores:
    if not arguments:
        return scores
    spoiled = arguments[2] == NO_NUMBER
    if not spoiled.any():
        return scores
    held = scores.log_probs_BT
    return replace(scores, log_probs_BT=torch.where(spoiled[:, None], held * torch.nan, held))


def answer(random: np.random.Generator, *, token: int | None = None, segments: int = 1, **changes: Any) -> Experience:
    """A good answer of one to three short or long segments; with `token`, a broken one that contains it."""
    fields: dict[str, Any] = {"reward": float(random.integers(0, 2)), "key": random_key(random)}
    found = []
    for _ in range(segments):
        prompt = random.integers(1, FIRST_BROKEN, random.integers(2, 6)).tolist()
        said = random.integers(1, FIRST_BROKEN, int(random.choice([1, 2, 5, 30]))).tolist()
        if token is not None:
            said[-1] = token
        found.append(segment(prompt, said, (-random.exponential(2.0, len(said))).tolist()))
    return experience(*found, **(fields | changes))


def with_log_prob(random: np.random.Generator, value: float) -> Experience:
    """An answer whose last log-prob is this."""
    item = answer(random)
    held = np.frombuffer(item.segments[0].logprobs, "<f4").tolist()
    broken = msgspec.structs.replace(item.segments[0], logprobs=pack_floats([*held[:-1], value]))
    return msgspec.structs.replace(item, segments=(broken,))


def foreign(random: np.random.Generator, **changes: Any) -> Experience:
    """An answer with one changed segment."""
    item = answer(random)
    return msgspec.structs.replace(item, segments=(msgspec.structs.replace(item.segments[0], **changes),))


BROKEN: dict[str, tuple[Callable[[np.random.Generator], Experience], tuple[str, str]]] = {
    "nan": (lambda r: with_log_prob(r, float("nan")), ("filtered", "impossible_log_prob")),
    "-3e38": (lambda r: with_log_prob(r, -3e38), ("filtered", "impossible_log_prob")),
    "3e38": (lambda r: with_log_prob(r, 3e38), ("filtered", "impossible_log_prob")),
    "reward": (lambda r: answer(r, reward=3e38), ("filtered", "impossible_reward")),
    "-reward": (lambda r: answer(r, reward=-3e38), ("filtered", "impossible_reward")),
    "policy": (lambda r: answer(r, policy="another"), ("filtered", "other_policy")),
    "version": (lambda r: foreign(r, spans=(Span(0, 12345),)), ("filtered", "unknown_version")),
    "tokenizer": (lambda r: foreign(r, token_ids=pack_ids([1, VOCABULARY]), loss_mask=b"\0\1",
                                    logprobs=pack_floats([0, -1])), ("filtered", "unknown_token")),
    "model": (lambda r: answer(r, token=NO_NUMBER), ("quarantined", "non_finite_loss")),
    "raises": (lambda r: answer(r, token=RAISES), ("quarantined", "step_error")),
    "raises in one of its segments": (lambda r: answer(r, token=RAISES, segments=3), ("quarantined", "step_error")),
    "memory": (lambda r: answer(r, token=NO_MEMORY), ("quarantined", "step_error")),
}  # fmt: skip
