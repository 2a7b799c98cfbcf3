"""What `millrace judge admit` would write of a good judge, for tests that need such a report."""

from __future__ import annotations

from typing import Any

FIGURE = {"value": 0.8, "low": 0.7, "high": 0.9}
FIGURES: dict[str, Any] = {
    "num_labels": 200, "answered": 1.0, "unparsable": 0.0, "kappa": FIGURE, "weighted_kappa": FIGURE,
    "sensitivity": None, "specificity": None, "num_pairs": 0, "order_flips": None, "num_master_keys": 270,
    "master_keys": {"value": 0.0, "low": 0.0, "high": 0.014}, "num_calls": 1, "num_tokens": 1, "money": 0.0,
    "seconds": 1.0,
}  # fmt: skip
