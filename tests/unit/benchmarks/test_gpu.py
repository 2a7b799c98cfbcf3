"""The GPU tables: a row costs only its own figures, and the plain step that the trainer's is compared with computes what it says."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.__main__ import GpuRow, run_row
from benchmarks.gpu.machine import model_of
from benchmarks.trainer.plain import PlainStep, log_probs, plain_rows

ROWS = [(list(range(5, 17)), 4, 1.0), (list(range(40, 49)), 6, -1.0), (list(range(100, 130)), 29, 1.0)]


def found_by(function: str, seconds: float) -> dict[str, Any]:
    row = GpuRow("a row", seconds, f"tests.unit.benchmarks.gpu_rows:{function}", {})
    return run_row(row, seconds, "forkserver", rehearse=True)


def test_a_row_that_hangs_breaks_or_lacks_a_package_keeps_what_it_had() -> None:
    assert found_by("hangs", 3.0) == {"first": 1.0, "tiny": True, "broke_off": "no time: stopped after 3 s"}
    assert found_by("breaks", 60.0) == {"first": 1.0, "broke_off": "MemoryError: no room"}
    assert found_by("lacks", 60.0) == {
        "not_run": "this machine has no package_that_nobody_has: carry it with `make gpu-packages`"
    }


def test_plain_rows_are_cut_at_the_budget_and_score_as_single_rows_do() -> None:
    model = model_of("tiny", "cpu")
    batches = plain_rows(ROWS, 25, "cpu")
    assert [rows.bounds.tolist() for rows in batches] == [[0, 12, 21], [0, 30]]
    found = torch.cat([log_probs(model, rows) for rows in batches])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rows = [model(torch.tensor([ids])).logits[0].float().log_softmax(-1) for ids, _, _ in ROWS]
    each = [
        logits[torch.arange(len(ids) - num - 1, len(ids) - 1), ids[-num:]]
        for logits, (ids, num, _) in zip(rows, ROWS, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(each), atol=0.02, rtol=0)


def test_a_plain_step_makes_what_was_rewarded_likelier() -> None:
    model = model_of("tiny", "cpu")
    batches = plain_rows(ROWS, 25, "cpu")
    before = torch.cat([log_probs(model, rows) for rows in batches])
    stepper = PlainStep(model)
    for _ in range(20):
        stepper.step(batches)
    gained = torch.cat([log_probs(model, rows) for rows in batches]) - before
    advantage = torch.cat([rows.advantages for rows in batches])
    assert float(gained @ advantage) > 0
