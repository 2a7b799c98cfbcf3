"""One run of the bench in a process of its own. Not in `__main__`: a spawned process does not import a package's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.objectives.model import TinyPolicy
from benchmarks.objectives.pretrain import base_policy
from benchmarks.objectives.run import Cell, run
from benchmarks.objectives.tasks import TASKS, Data, load

POOL, HELD_OUT = 20_000, 128
QUICK_POOL, QUICK_STEPS = 400, 3


@cache
def prepared(task: str, folder: Path, size: int) -> tuple[Data, TinyPolicy]:
    """Questions and base policy of a task, from `folder` if they were made before."""
    torch.set_num_threads(1)
    about = TASKS[task] if size == POOL else replace(TASKS[task], pretrain_steps=QUICK_STEPS)
    data = load(about, folder, size)
    data = data._replace(held_out=data.held_out.rows(torch.arange(min(HELD_OUT, len(data.held_out.prompts)))))
    return data, base_policy(about, data, folder)


def done(work: tuple[Cell, Path, int]) -> tuple[Cell, dict[str, Any]]:
    """One run. `work`: the cell, the folder, and the size of the pool of questions."""
    cell, folder, size = work
    data, base = prepared(cell.task, folder, size)
    return cell, run(cell, base, data, TASKS[cell.task].noise)
