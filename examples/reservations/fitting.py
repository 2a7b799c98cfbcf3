"""Fit a small model to answers: what the builders of policies share.

In: rows of a prompt and its answer, as token ids. Out: the model, trained in place, and its folder.
"""

# ruff: noqa: N806 - tensors carry the letters of their dimensions: B requests, L tokens

import math
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

IGNORED = -100
_PRINT_STEPS = 50


def untrained(tokenizer: PreTrainedTokenizerFast, seed: int, *, context: int, **sizes: int) -> LlamaForCausalLM:
    """A small Llama with tied embeddings for this tokenizer. `sizes`: further fields of its configuration."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **sizes,
    )
    return LlamaForCausalLM(config)


def padded(rows: Sequence[tuple[list[int], list[int]]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`input_ids_BL, labels_BL` of prompts and answers, padded on the right; only answers carry a label."""
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    input_ids_BL = torch.full((len(rows), length), pad_id)
    labels_BL = torch.full((len(rows), length), IGNORED)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        input_ids_BL[row, :end] = torch.tensor(prompt + answer)
        labels_BL[row, len(prompt) : end] = torch.tensor(answer)
    return input_ids_BL, labels_BL


def fit(
    model: LlamaForCausalLM,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    num_steps: int,
    max_learning_rate: float,
    warm_up_steps: int,
) -> float:
    """Train in place; the cosine ends at zero, so the last weights are the converged ones.

    Returns the mean loss of the last tenth of the steps, in nats per token.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=max_learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / warm_up_steps) * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    )
    started, losses = time.monotonic(), list[float]()
    for step, (input_ids_BL, labels_BL) in enumerate(islice(batches, num_steps), start=1):
        # Causal attention never looks at the right-hand padding, so no attention mask is needed.
        loss = model(input_ids=input_ids_BL, labels=labels_BL).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % _PRINT_STEPS == 0:
            mean, seconds = sum(losses[-_PRINT_STEPS:]) / _PRINT_STEPS, time.monotonic() - started
            sys.stdout.write(f"step {step}/{num_steps}  loss {mean:.4f}  {seconds:.0f} s\n")
            sys.stdout.flush()
    last = losses[-max(num_steps // 10, 1) :]
    return sum(last) / len(last)


def save(model: Any, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the policy in bf16 with its tokenizer, template and neutral generation settings."""
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
