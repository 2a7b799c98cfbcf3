"""The base policies of the bench: trained on labels of which about half are wrong, so that they sample about half right."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from benchmarks.objectives.model import TinyPolicy
from benchmarks.objectives.tasks import BenchTask, Data, fingerprint

BATCH = 128
LEARNING_RATE = 3e-3
WARM_UP = 50


def base_policy(task: BenchTask, data: Data, folder: Path) -> TinyPolicy:
    """The base policy of a task, from `folder` if it was trained before."""
    path = folder / f"{task.name}-base-{fingerprint(task)}.pt"
    policy = TinyPolicy(data.shape)
    if not path.exists():
        torch.save(_trained(task, data), path)
    policy.load_state_dict(torch.load(path))
    return policy


def _trained(task: BenchTask, data: Data) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    policy, random = TinyPolicy(data.shape), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True)
    steps = task.pretrain_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    for _ in range(steps):
        rows = data.train.rows(torch.randint(len(data.train.prompts), (BATCH,), generator=random))
        mask = rows.labels > 0
        loss = -policy.score(rows.prompts, rows.labels).log_probs_BT[mask].mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return policy.state_dict()
