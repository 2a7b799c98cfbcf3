"""The policy that answers: versions as the trainer publishes them, sampled with a cache.

Shapes: B answers, P prompt tokens, A answer tokens, V vocabulary.
"""

# ruff: noqa: N806 - tensors carry the letters of their dimensions

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from pipelines.training.text.edits import AnswerTokenizer
from policy.load import load_model
from policy.weights import copy_tensors
from runtime.template.chat_template import load_template
from weights.tensors import Tensor

MOST_TOKENS = 48


class HouseAnswer(NamedTuple):
    """An answer: ids with the token that ends it, if it ended; their log-probs; its text."""

    prompt_ids: list[int]
    ids: list[int]
    log_probs: list[float]
    text: str


class HousePolicy:
    """A base policy's folder, with the weights of any version."""

    def __init__(self, base: Path) -> None:
        self.base, self.template = base, load_template(str(base))
        self.tokenizer = AnswerTokenizer.of(base)
        self.model = load_model(str(base), device="cpu", dtype=torch.float32)
        self._end = int(self.model.config.eos_token_id)

    def become(self, bits: Mapping[str, Tensor]) -> None:
        """Serve a version."""
        copy_tensors(self.model, bits)

    def prompt_ids(self, prompt: str) -> list[int]:
        """As the endpoint renders a question."""
        return self.template.encode([{"role": "user", "content": prompt}])

    @torch.inference_mode()
    def answer(
        self, prompts: Sequence[list[int]], random: torch.Generator | None, most: int = MOST_TOKENS
    ) -> list[HouseAnswer]:
        """An answer to each prompt, at temperature 1, or the likeliest tokens."""
        width = max(map(len, prompts))
        ids_BP = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask_BP = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        past, found, is_over_B = None, [], torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(most):
            positions_BP = (mask_BP.cumsum(-1) - 1).clamp(min=0)[:, -ids_BP.shape[1] :]
            out = self.model(
                input_ids=ids_BP,
                attention_mask=mask_BP,
                position_ids=positions_BP,
                past_key_values=past,
                use_cache=True,
            )
            past, log_probs_BV = out.past_key_values, out.logits[:, -1].float().log_softmax(-1)
            drawn_B = (
                log_probs_BV.argmax(-1)
                if random is None
                else torch.multinomial(log_probs_BV.exp(), 1, generator=random)[:, 0]
            )
            found.append((drawn_B, log_probs_BV.gather(1, drawn_B[:, None])[:, 0], ~is_over_B))
            is_over_B = is_over_B | (drawn_B == self._end)
            if bool(is_over_B.all()):
                break
            ids_BP = drawn_B[:, None]
            mask_BP = torch.cat([mask_BP, torch.ones_like(ids_BP)], 1)
        ids_BA, log_probs_BA, mask_BA = (torch.stack(each, 1) for each in zip(*found, strict=True))
        rows = zip(prompts, ids_BA, log_probs_BA, mask_BA, strict=True)
        return [self._said(prompt, ids[mask].tolist(), each[mask].tolist()) for prompt, ids, each, mask in rows]

    def _said(self, prompt: list[int], ids: list[int], log_probs: list[float]) -> HouseAnswer:
        text = ids[:-1] if ids[-1] == self._end else ids
        return HouseAnswer(prompt, ids, log_probs, self.template.tokenizer.decode(text, skip_special_tokens=False))

    @torch.inference_mode()
    def log_probs(self, begun: list[int], texts: Sequence[str]) -> list[float]:
        """Of each text after the tokens `begun`, nats per token."""
        ids = [self.ids_of(text) for text in texts]
        longest = max(map(len, ids))
        ids_BA = torch.tensor([each + [0] * (longest - len(each)) for each in ids])
        begun_BP = torch.tensor([begun]).expand(len(ids), -1)
        logits_BAV = self.model(input_ids=torch.cat([begun_BP, ids_BA], 1)).logits[:, len(begun) - 1 : -1]
        log_probs_BA = logits_BAV.log_softmax(-1).gather(2, ids_BA[..., None])[..., 0]
        return [float(row[: len(each)].mean()) for row, each in zip(log_probs_BA, ids, strict=True)]

    def ids_of(self, text: str) -> list[int]:
        """Tokens of a part of an answer."""
        return list(self.template.tokenizer.encode(text, add_special_tokens=False).ids)
