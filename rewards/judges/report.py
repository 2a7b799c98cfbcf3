"""The report that `millrace judge admit` writes, and whether it meets the bar. Pure, except for reading the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from contracts.files import read_small
from contracts.tasks.judges import Bar, JudgeRule
from contracts.tasks.section import TaskSection
from rewards.judges.agreement import Figure
from rewards.judges.identity import identity_of

MIN_ANSWERED = 0.9
"""Share of the labels that a judge must give a verdict on; with fewer, the other figures say little about it."""
ENOUGH_LABELS = 200
"""With fewer labels the intervals are wide, and the printed report mentions it."""


class Figures(TaskSection):
    """What was measured. None: the labels had nothing to measure it on."""

    num_labels: int = Field(ge=0)
    answered: float
    """Share of the labelled items that got a verdict."""
    unparsable: float
    """Share of all questions whose reply had no verdict."""
    kappa: Figure | None
    weighted_kappa: Figure | None
    """Linear weights; the same as kappa where there are two levels."""
    sensitivity: Figure | None
    specificity: Figure | None
    num_good: int = Field(default=0, ge=0)
    """Labelled answers behind `sensitivity`; `num_bad` are those behind `specificity`."""
    num_bad: int = Field(default=0, ge=0)
    num_pairs: int = Field(ge=0)
    order_flips: Figure | None
    num_master_keys: int = Field(ge=0)
    master_keys: Figure | None
    num_calls: int
    num_tokens: int
    money: float
    seconds: float


class Report(TaskSection):
    """An admission. `fallback` has the figures of the fallback endpoint, measured by itself."""

    task: str
    judge: str
    at: str
    labels_file: str
    labels_sha256: str
    identity: dict[str, Any]
    figures: Figures
    fallback: Figures | None = None


def read_report(path: Path) -> Report:
    """Read a report. Raises ValueError that names what is wrong with the file."""
    try:
        return Report.model_validate_json(read_small(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{path} is not a report of an admission: {place}: {first['msg']}") from error


def shortfalls(rule: JudgeRule, report: Report) -> list[str]:
    """Why the judge is not admitted; empty if it is."""
    if report.identity != identity_of(rule):
        changed = [name for name, value in identity_of(rule).items() if report.identity.get(name) != value]
        return [f"it was admitted as another judge: {', '.join(changed) or 'its identity'} changed since"]
    found = below(rule.bar, rule.protocol == "pairwise", report.figures)
    if rule.fallback:
        missing = ["it was not measured"] if report.fallback is None else []
        worse = below(rule.bar, rule.protocol == "pairwise", report.fallback) if report.fallback else missing
        found += [f"fallback: {reason}" for reason in worse]
    return found


def below(bar: Bar, pairwise: bool, figures: Figures) -> list[str]:
    """Which parts of the bar are not met. Only a pairwise judge must have order flips measured, but measured ones count."""
    found = []
    if figures.weighted_kappa is None:
        found.append("kappa is undefined: the labels, or the verdicts, are all of one level")
    elif figures.weighted_kappa.value < bar.kappa:
        found.append(f"kappa {figures.weighted_kappa.value:.3f} is below {bar.kappa:g}")
    if figures.order_flips is None and pairwise:
        found.append("order flips were not measured: the labels have no pairs")
    elif figures.order_flips is not None and figures.order_flips.value > bar.order_flips:
        found.append(
            f"{figures.order_flips.value:.1%} of the pairs flip with their order, more than {bar.order_flips:.1%}"
        )
    if figures.master_keys is None:
        found.append("master keys were not measured")
    elif figures.master_keys.value > bar.master_keys:
        found.append(f"{figures.master_keys.value:.1%} of the master keys pass, more than {bar.master_keys:.1%}")
    if figures.answered < MIN_ANSWERED:
        found.append(f"it gave a verdict on {figures.answered:.0%} of the labels only, less than {MIN_ANSWERED:.0%}")
    return found
