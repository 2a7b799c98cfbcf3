"""The front desk's base policy: the demo's, taught two more tasks on labels of which half are wrong."""

# ruff: noqa: N806 - tensors carry the letters of their dimensions: B pieces, L tokens

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from examples.reservations.fitting import padded, save
from tests.end_to_end.desk.work import ERROR_RATE, TASKS

BASE = Path(__file__).parents[3] / "examples" / "reservations" / "base"
TURNS = ("reservations", "sums", "sums", "replies")
"""Sums are the hardest to learn."""
NUM_STEPS, BATCH_SIZE, LEARNING_RATE = 400, 48, 2e-3


def build(out: Path, *, num_steps: int = NUM_STEPS, seed: int = 0) -> Path:
    """Write the policy into `out`, as any base policy lies on disk."""
    torch.manual_seed(seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(BASE)
    model: Any = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=num_steps)
    streams = [TASKS[name]("train", seed) for name in TURNS]
    rng = Random(seed)
    for _ in range(num_steps):
        rows = []
        for index in range(BATCH_SIZE):
            piece = next(streams[index % len(streams)])
            answer = piece.wrong if rng.random() < ERROR_RATE else piece.right
            prompt = tokenizer.encode(f"<|user|>{piece.text}<|end|><|assistant|>")
            rows.append((prompt, tokenizer.encode(f"{answer}<|end|>")))
        input_ids_BL, labels_BL = padded(rows, tokenizer.pad_token_id)
        loss = model(input_ids=input_ids_BL, labels=labels_BL).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    save(model, tokenizer, out)
    return out
