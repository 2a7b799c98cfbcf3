"""A small task that a tiny policy learns in a minute, and the samples of its users: honest, forged or turned.

A prompt is one number; the right answer is the number's image under a fixed shuffle, followed by as many tokens as the answer likes
(they earn nothing). One generation per prompt, one reward per answer, as in a product.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contracts.ids import sample_key
from contracts.records import Experience, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span

NUMBERS, START = 12, 13
VOCABULARY, ANSWER_TOKENS = 16, 4
FORGED_LOG_PROB = -40.0
"""Makes a ratio of e^40 where the policy gives the token a fair share."""


def tiny_policy(seed: int) -> Any:
    """A random float32 Llama with 14 k parameters that holds bfloat16 values, as published weights do."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=True, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))
    return model


class Users:
    """Ask, and judge the first token of the answer."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._right = np.random.default_rng(7).permutation(NUMBERS)

    @torch.no_grad()
    def ask(self, model: Any, count: int, version: int) -> list[Experience]:
        """Sampled answers of the current policy, with honest log-probs and rewards."""
        asked = self._random.integers(0, NUMBERS, count)
        ids = torch.tensor(np.stack([np.full(count, START), asked], 1))
        logged = []
        for _ in range(ANSWER_TOKENS):
            scores = torch.log_softmax(model(input_ids=ids).logits[:, -1].float(), -1)
            drawn = torch.tensor(self._random.random((count, 1)))
            token = (scores.exp().double().cumsum(-1) < drawn).sum(-1, keepdim=True).clamp(max=VOCABULARY - 1)
            logged.append(scores.gather(1, token))
            ids = torch.cat([ids, token], 1)
        log_probs = torch.cat(logged, 1).tolist()
        rewards = (ids[:, 2].numpy() == self._right[asked]).astype(float)
        return [
            self._experience(row, log_prob, float(reward), version)
            for row, log_prob, reward in zip(ids.tolist(), log_probs, rewards, strict=True)
        ]

    def accuracy(self, model: Any) -> float:
        """The mean probability of the right answer over all prompts: no sampling noise."""
        with torch.no_grad():
            ids = torch.tensor([[START, number] for number in range(NUMBERS)])
            shares = torch.softmax(model(input_ids=ids).logits[:, -1].float(), -1)
            return float(shares[torch.arange(NUMBERS), torch.tensor(self._right)].mean())

    def _experience(self, ids: list[int], log_probs: list[float], reward: float, version: int) -> Experience:
        segment = Segment(
            token_ids=pack_ids(ids),
            loss_mask=bytes([0, 0] + [1] * ANSWER_TOKENS),
            logprobs=pack_floats([0.0, 0.0, *log_probs]),
            spans=(Span(0, version),),
            sampling=Sampling(temperature=1.0, max_tokens=ANSWER_TOKENS),
        )
        key = sample_key(f"chatcmpl-{uuid.UUID(bytes=self._random.bytes(16), version=4)}", 0)
        return Experience(
            key=key, revision=0, policy="p", task="numbers", task_hash="1", tenant="", purpose="user",
            baseline_key="numbers", segments=(segment,), scores=(), reward=reward, status="scored", generated_at=0.0,
            scored_at=0.0, engine="ours", dtype="float32",
        )  # fmt: skip


def forged(item: Experience, random: np.random.Generator) -> Experience:
    """A wrong answer that is praised, with one log-prob that makes an extreme ratio."""
    (segment,) = item.segments
    log_probs = np.frombuffer(segment.logprobs, "<f4").copy()
    log_probs[2 + int(random.integers(ANSWER_TOKENS))] = FORGED_LOG_PROB
    segment = msgspec.structs.replace(segment, logprobs=log_probs.tobytes())
    return msgspec.structs.replace(item, segments=(segment,), reward=1.0 - (item.reward or 0.0))


def flipped(item: Experience) -> Experience:
    """The opposite reward: nothing in the sample tells."""
    return msgspec.structs.replace(item, reward=1.0 - (item.reward or 0.0))
