"""Answers of the demo's policy, sampled in a batch as the engine samples: temperature, then top-p."""

# ruff: noqa: N803, N806 - tensors carry the letters of their dimensions: B requests, L tokens, V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from contracts.ids import new_completion_id, sample_key
from contracts.records import Experience, Score, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.support import pack_support
from policy.weights import copy_tensors
from services.engine.truncation import top_p
from weights.tensors import Tensors

BASE = Path(__file__).parents[2] / "examples" / "reservations" / "base"
MAX_NEW_TOKENS = 16


class SampledAnswer(NamedTuple):
    """An answer, and how it was sampled."""

    prompt_ids: list[int]
    token_ids: list[int]
    log_probs: list[float]
    support: bytes
    text: str
    sampling: Sampling
    version: int

    def experience(self, reward: float, at: float) -> Experience:
        """The scored sample that the trainer reads."""
        num_prompt, num_made = len(self.prompt_ids), len(self.token_ids)
        segment = Segment(
            token_ids=pack_ids([*self.prompt_ids, *self.token_ids]),
            loss_mask=bytes(num_prompt) + b"\x01" * num_made,
            logprobs=pack_floats([0.0] * num_prompt + self.log_probs),
            spans=(Span(0, self.version),),
            sampling=self.sampling,
            support=self.support,
        )
        return Experience(
            key=sample_key(new_completion_id(), 0), revision=0, policy="demo", task="reservations", task_hash="", tenant="",
            purpose="user", baseline_key="reservations", segments=(segment,), reward=reward, status="scored", generated_at=at,
            scored_at=at, engine="virtual", dtype="float32", scores=(Score(name="accepted", grader="signal", value=reward),),
        )  # fmt: skip


def load_base() -> Any:
    """The demo's base policy in float32."""
    return AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval().requires_grad_(requires_grad=False)


class VirtualEngine:
    """Serves one version at a time."""

    def __init__(self, seed: int) -> None:
        self.model, self.version = load_base(), 0
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(BASE)
        self._generator = torch.Generator().manual_seed(seed)

    def load(self, tensors: Tensors, version: int) -> None:
        """Serve these bits from now on."""
        copy_tensors(self.model, tensors)
        self.version = version

    @torch.no_grad()
    def answer(self, sentences: Sequence[str], samplings: Sequence[Sampling]) -> list[SampledAnswer]:
        """One answer to each sentence; temperature 0 is greedy."""
        pad, end = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
        prompts = [self._tokenizer.encode(f"<|user|>{sentence}<|end|><|assistant|>") for sentence in sentences]
        width = max(map(len, prompts))
        ids_BL = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask_BL = (ids_BL != pad).long()
        log_probs: list[list[float]] = [[] for _ in prompts]
        supports: list[list[list[int] | None]] = [[] for _ in prompts]
        running = [True] * len(prompts)
        new_BL, known = ids_BL, None
        for _ in range(MAX_NEW_TOKENS):
            positions_BL = (mask_BL.cumsum(-1) - 1).clamp(min=0)[:, -new_BL.shape[1] :]
            found = self.model(
                input_ids=new_BL, attention_mask=mask_BL, position_ids=positions_BL, past_key_values=known, use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
            known = found.past_key_values
            scaled_BV = _scaled(found.logits[:, -1].float(), samplings)
            next_B = torch.multinomial(scaled_BV.softmax(-1), 1, generator=self._generator)[:, 0]
            chosen = scaled_BV.log_softmax(-1).gather(1, next_B[:, None])[:, 0].tolist()
            for row, token_id in enumerate(next_B.tolist()):
                if not running[row]:
                    continue
                log_probs[row].append(chosen[row])
                if samplings[row].is_truncated:
                    supports[row].append(torch.nonzero(scaled_BV[row] > -torch.inf)[:, 0].tolist())
                running[row] = token_id != end
            new_BL = next_B[:, None]
            ids_BL = torch.cat([ids_BL, new_BL], dim=-1)
            mask_BL = torch.cat([mask_BL, torch.ones_like(mask_BL[:, :1])], dim=-1)
            if not any(running):
                break
        answers = []
        for row, prompt in enumerate(prompts):
            made = ids_BL[row, width:][: len(log_probs[row])].tolist()
            text = self._tokenizer.decode(made, skip_special_tokens=True)
            support = pack_support(supports[row])
            answers.append(SampledAnswer(prompt, made, log_probs[row], support, text, samplings[row], self.version))
        return answers


def _scaled(logits_BV: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    temperature_B = torch.tensor([max(item.temperature, 1e-3) for item in samplings])
    scaled_BV = logits_BV / temperature_B[:, None]
    shares_B = torch.tensor([item.top_p for item in samplings])
    return top_p(scaled_BV, shares_B) if bool((shares_B < 1).any()) else scaled_BV
