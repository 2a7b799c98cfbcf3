"""trl's GRPOTrainer on given samples: its loss, its forward, its layout (prompts padded left, answers right)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from contracts.records import Experience


def stepper(
    model: Any, items: Sequence[Experience], folder: Path, *, rows: int, bound: float, device: str = "cpu"
) -> Callable[[], None]:
    """A function that takes one optimizer step over all samples, `rows` in each forward pass."""
    vocabulary = {f"t{index}": index for index in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="t0")),  # noqa: S106 a token of text
        pad_token="t0",  # noqa: S106 as above
        eos_token="t1",  # noqa: S106 as above
    )
    arguments = GRPOConfig(
        output_dir=str(folder), use_cpu=device == "cpu", bf16=False, report_to=[], per_device_train_batch_size=max(rows, 2), beta=0.0,
        num_generations=2, loss_type="cispo", epsilon_high=bound, disable_dropout=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model.requires_grad_(),
        args=arguments,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["t2", "t3"]}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-4, weight_decay=0.0)
    parts = [
        {name: value.to(device) for name, value in _inputs(items[start : start + rows]).items()}
        for start in range(0, len(items), rows)
    ]
    total = sum(part["completion_mask"].sum() for part in parts)

    def step() -> None:
        optimizer.zero_grad()
        for part in parts:
            loss = trainer._compute_loss(trainer.model, part | {"num_items_in_batch": total})  # noqa: SLF001 trl has no other loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()

    return step


def _inputs(items: Sequence[Experience]) -> dict[str, torch.Tensor]:
    segments = [item.segments[0] for item in items]
    widths = [max(segment.loss_mask.count(value) for segment in segments) for value in (0, 1)]
    found = {
        name: torch.zeros((len(items), width), dtype=torch.long)
        for side, width in zip(("prompt", "completion"), widths, strict=True)
        for name in (f"{side}_ids", f"{side}_mask")
    }
    logged = torch.zeros((len(items), widths[1]))
    for row, segment in enumerate(segments):
        ids = torch.from_numpy(np.frombuffer(segment.token_ids, "<i4").astype(np.int64))
        start = segment.loss_mask.index(1)
        found["prompt_ids"][row, widths[0] - start :] = ids[:start]
        found["prompt_mask"][row, widths[0] - start :] = 1
        found["completion_ids"][row, : len(ids) - start] = ids[start:]
        found["completion_mask"][row, : len(ids) - start] = 1
        logged[row, : len(ids) - start] = torch.from_numpy(np.frombuffer(segment.logprobs, "<f4")[start:].copy())
    advantages = torch.tensor([2.0 * (item.reward or 0.0) - 1.0 for item in items])
    return found | {"old_per_token_logps": logged, "advantages": advantages}
