"""The same bits from the same step: a restart takes the steps of the journal again, and a replay compares their figures."""

from __future__ import annotations

import os

import torch


def compute_repeatably(device: torch.device) -> None:
    """Let this process sum in a fixed order. Call it before the device computes.

    A CPU does so by itself. On a GPU some sums add their terms in the order in which threads finish, unless torch is told not to.
    torch warns of operations without a fixed order (https://docs.pytorch.org/docs/stable/notes/randomness.html).
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Nothing here reads what it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
