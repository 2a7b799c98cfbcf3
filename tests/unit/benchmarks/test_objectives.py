"""The bench of objectives: its rule, its order, and a small run of the real thing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.objectives import plan
from benchmarks.objectives.__main__ import bench, read
from benchmarks.objectives.model import TinyPolicy, TinyShape
from benchmarks.objectives.plan import (
    CANDIDATES,
    CLEAN,
    FULL,
    QUICK,
    REAL,
    SCREEN,
    ObjectiveVerdict,
    PlanPlace,
    Results,
    cell,
    ranked,
    rate_cells,
    stages,
    verdicts,
)
from benchmarks.objectives.table import summary, table
from benchmarks.objectives.tasks import TASKS
from benchmarks.objectives.work import QUICK_POOL

TASK = ["sort"]
HARD = PlanPlace(64, 80, 10)


def verdict(end: float, error: float, below: float = 0.0, place: PlanPlace = HARD) -> ObjectiveVerdict:
    return ObjectiveVerdict("sort", place, 5, 0.5, end, error, below)


def test_the_rule() -> None:
    assert not verdict(0.45, 0.03).fails
    assert verdict(0.43, 0.03).fails
    assert verdict(0.9, 0.0, 0.06, PlanPlace(64, 20, 1)).fails
    assert not verdict(0.9, 0.0, 0.06, PlanPlace(64, 20, 3)).fails
    assert not verdict(0.9, 0.0, 0.06, PlanPlace(64, 80, 1)).fails


def test_runs_are_five_times_as_long_as_their_lag() -> None:
    assert len(FULL) == 26
    assert set(SCREEN) <= set(FULL)
    assert set(CLEAN) <= set(FULL)
    assert all(cell("gspo", "sort", place, 1e-3, 1).steps >= 5 * place.lag for place in FULL)


def run_of(name: str, place: PlanPlace, seed: int) -> dict[str, Any]:
    """GSPO always ends at .9; m2po too, but for one cell; all others below their start."""
    good = name == "gspo" or (name == "m2po" and place != PlanPlace(4, 80, 10))
    return {"start": 0.5, "end": 0.9 + 0.001 * seed if good else 0.2, "lowest": 0.2, "ess": 1.0, "curve": []}


def pretended() -> Iterator[tuple[str, Results]]:
    """The stages, each with made-up results of its runs."""
    results = Results()
    of_cell = {
        cell(name, "sort", place, 1e-3, seed): run_of(name, place, seed)
        for name in CANDIDATES
        for place in FULL
        for seed in REAL.seeds
    }
    for name, cells in stages(results, TASK):
        for each in cells:
            made = {"start": 0.5, "end": 0.6 + (each.rate == 1e-3), "lowest": 0.5, "ess": 1.0, "curve": []}
            results[each] = made if name == "rates" else of_cell[each]
        yield name, results


@pytest.mark.slow
def test_the_best_are_kept_and_controls_never_are() -> None:
    counts, before = {}, 0
    for name, results in pretended():
        counts[name], before = len(results) - before, len(results)
    assert counts == {"rates": 8, "screen": 18 * 3, "half": 3 * 23, "final": 2 * 26 * 4}
    assert ranked(results, list(CANDIDATES), TASK, FULL)[:2] == ["gspo", "m2po"]
    assert "vcpo, no step bound" not in ranked(results, list(CANDIDATES), TASK, FULL)
    facts = summary(results, TASK)["candidates"]
    assert facts["gspo"]["failures"] == 0
    assert (facts["m2po"]["failures"], facts["m2po"]["worst_cell"]) == (1, "sort, batch 4, lag 80, rate x10")
    assert (facts["gspo"]["cells"], facts["gspo"]["seeds"]) == (24, 5)
    bare = facts["vcpo, no step bound"]
    assert bare["failures"] == bare["cells"] == 3
    text = table(results, TASK)
    assert "| gspo | 3 | 24 of 24 | 5 | 0 | 90 | 90 | +40" in text
    assert "**20**" in text
    errors = [item.error for item in verdicts(results, "gspo", TASK, FULL)]
    assert all(0 < error < 0.001 for error in errors)


def test_a_table_of_part_of_the_results_is_a_table() -> None:
    *_, (_, results) = pretended()
    some = Results(list(results.items())[:40])
    assert "| gspo | 3 |" in table(some, TASK)


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    done = next(iter(rate_cells(TASK)))
    line = json.dumps(Results.line(done, {"end": 0.5}))
    (tmp_path / "out").write_text(f"{line}\n{line[:40]}")
    assert read(tmp_path / "out") == {done: {"end": 0.5}}
    assert read(tmp_path / "missing") == {}


def test_sampling_with_a_cache_gives_the_log_probs_of_scoring() -> None:
    torch.manual_seed(0)
    policy = TinyPolicy(TinyShape(vocabulary=12, prompt=5, answer=7, width=16))
    prompts = torch.randint(0, 12, (9, 5))
    answers = policy.sample(prompts, torch.Generator().manual_seed(1))
    scores = policy.score(prompts, answers.ids_BA)
    torch.testing.assert_close(answers.log_probs_BA, torch.where(answers.mask_BA, scores.log_probs_BT, 0.0))
    ends = (answers.ids_BA == 1).float().argmax(1)
    assert all(mask[: end + 1].all() for mask, end in zip(answers.mask_BA, ends, strict=True))


@pytest.mark.slow  # importing reasoning-gym takes seconds
def test_the_questions_answers_are_those_of_the_libraries_own_scorers() -> None:
    gym = pytest.importorskip("reasoning_gym")
    names = {"backward": "spell_backward", "sort": "number_sorting", "sum": "chain_sum"}
    for name, dataset in names.items():
        question = next(TASKS[name].questions(0))
        scorer = gym.create_dataset(dataset, seed=0, size=1)
        about = {"word": question.prompt, "direction": question.prompt.split(":")[0]}
        entry = {"answer": question.right, "metadata": about}
        assert scorer.score_answer(question.right, entry) == 1.0
        assert scorer.score_answer(question.wrong, entry) < 1.0
        assert question.wrong != question.right


@pytest.mark.slow
def test_a_small_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each objective once, and a control."""
    kept = {name: CANDIDATES[name] for name in (*plan._OBJECTIVES, "gspo, no step bound")}
    for module in ("plan", "table"):
        monkeypatch.setattr(f"benchmarks.objectives.{module}.CANDIDATES", kept)
    out = tmp_path / "out.jsonl"
    first = bench(out, tmp_path, ["reservations"], scale=QUICK, size=QUICK_POOL)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[: len(lines) * 3 // 4]))
    again = bench(out, tmp_path, ["reservations"], scale=QUICK, size=QUICK_POOL)
    assert again == first
    assert summary(again, ["reservations"], QUICK)["candidates"]["truncated"]["cells"] >= 1
