"""Accuracy of a reservations policy on held-out sentences."""

# ruff: noqa: N803, N806 - tensors carry the letters of their dimensions: B requests, L tokens, V vocabulary

from itertools import islice
from typing import TYPE_CHECKING, cast

import torch

from examples.reservations.sentences import Request, requests

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

MAX_NEW_TOKENS = 16


def measure(
    model: "LlamaForCausalLM", tokenizer: "PreTrainedTokenizerFast", seed: int, num_requests: int = 500
) -> dict[str, float]:
    """Answer held-out requests greedily and at temperature 1; return rates in 0..1 and mean token counts."""
    held_out = list(islice(requests("held_out", seed), num_requests))
    prompts = [tokenizer.encode(f"<|user|>{request.sentence}<|end|><|assistant|>") for request in held_out]
    greedy = answers(model, tokenizer, prompts, None)
    sampled = answers(model, tokenizer, prompts, torch.Generator().manual_seed(seed))
    return {
        "greedy accuracy": _right_rate(held_out, greedy),
        "sampled accuracy": _right_rate(held_out, sampled),
        "understood greedily": _understood_rate(held_out, greedy),
        "understood sampled": _understood_rate(held_out, sampled),
        "prompt tokens": sum(map(len, prompts)) / len(prompts),
        "answer tokens": sum(len(tokenizer.encode(answer)) + 1 for answer in sampled) / len(sampled),
    }


def answers(
    model: "LlamaForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    prompts: list[list[int]],
    generator: torch.Generator | None,
) -> list[str]:
    """Decode one answer per prompt, at temperature 1 with a generator and greedily without one."""
    width, pad = max(map(len, prompts)), cast("int", tokenizer.pad_token_id)
    # Left padding lines up the ends of the prompts, so that every row decodes its next token in the same column.
    ids_BL = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask_BL = (ids_BL != pad).long()
    running_B = torch.ones(len(prompts), dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(MAX_NEW_TOKENS):
            positions_BL = (mask_BL.cumsum(-1) - 1).clamp(min=0)
            logits_BV = model(input_ids=ids_BL, attention_mask=mask_BL, position_ids=positions_BL).logits[:, -1].float()
            next_B = logits_BV.argmax(-1) if generator is None else _draw(logits_BV, generator)
            ids_BL = torch.cat([ids_BL, torch.where(running_B, next_B, pad)[:, None]], dim=-1)
            mask_BL = torch.cat([mask_BL, torch.ones_like(mask_BL[:, :1])], dim=-1)
            running_B &= next_B != tokenizer.eos_token_id
            if not running_B.any():
                break
    rows = ids_BL[:, width:].tolist()
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def _draw(logits_BV: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.multinomial(logits_BV.softmax(-1), 1, generator=generator)[:, 0]


def _right_rate(asked: list[Request], given: list[str]) -> float:
    return sum(answer == request.booking.json() for request, answer in zip(asked, given, strict=True)) / len(asked)


def _understood_rate(asked: list[Request], given: list[str]) -> float:
    """Share of answers that are right or one of the declared confusions."""
    known = [{booking.json() for booking in (request.booking, *request.confusions)} for request in asked]
    return sum(answer in bookings for bookings, answer in zip(known, given, strict=True)) / len(asked)
