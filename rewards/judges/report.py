"""The identity of a judge, the report of its admission, and whether that meets the bar. Pure, except for reading the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from contracts.files import read_small
from contracts.tasks.judges import Bar, JudgeEndpoint, JudgeRule
from contracts.tasks.section import TaskSection
from rewards.judges.prompt import rubric_hash

MIN_ANSWERED = 0.9
"""Share of the labels that a judge must give a verdict on; with fewer, the other figures say little about it."""
ENOUGH_LABELS = 200
"""With fewer labels the intervals are wide, and the printed report mentions it."""
_NUM_HEX = 8


class Figure(TaskSection):
    """A figure with its 95% bounds."""

    value: float
    low: float
    high: float


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
    is_pairwise = rule.protocol == "pairwise"
    found = below(rule.bar, is_pairwise, report.figures)
    if rule.fallback:
        worse = below(rule.bar, is_pairwise, report.fallback) if report.fallback else ["it was not measured"]
        found += [f"fallback: {reason}" for reason in worse]
    return found


def below(bar: Bar, pairwise: bool, figures: Figures) -> list[str]:
    """Which parts of the bar are not met. Only a pairwise judge must have order flips measured, but measured ones count."""
    found, kappa, flips, keys = [], figures.weighted_kappa, figures.order_flips, figures.master_keys
    if kappa is None:
        found.append("kappa is undefined: the labels, or the verdicts, are all of one level")
    elif kappa.value < bar.kappa:
        found.append(f"kappa {kappa.value:.3f} is below {bar.kappa:g}")
    if flips is None and pairwise:
        found.append("order flips were not measured: the labels have no pairs")
    elif flips is not None and flips.value > bar.order_flips:
        found.append(f"{flips.value:.1%} of the pairs flip with their order, more than {bar.order_flips:.1%}")
    if keys is None:
        found.append("master keys were not measured")
    elif keys.value > bar.master_keys:
        found.append(f"{keys.value:.1%} of the master keys pass, more than {bar.master_keys:.1%}")
    if figures.answered < MIN_ANSWERED:
        found.append(f"it gave a verdict on {figures.answered:.0%} of the labels only, less than {MIN_ANSWERED:.0%}")
    return found


def label_of(rule: JudgeRule, task_hash: str) -> str:
    """`judge/<model>/<rubric>#<task>`: models joined by +, each with its revision if it has one."""
    named = [(endpoint.model, endpoint.revision) for endpoint in rule.endpoints]
    models = "+".join(f"{model}@{revision}" if revision else model for model, revision in named)
    return f"judge/{models}/{rubric_hash(rule)[:_NUM_HEX]}#{task_hash}"


def identity_of(rule: JudgeRule) -> dict[str, Any]:
    """Everything that can change what the judge says: models, their addresses, the prompt, how members combine."""
    return {
        "rubric": rubric_hash(rule),
        "protocol": rule.protocol,
        "members": [_endpoint(endpoint) for endpoint in rule.endpoints],
        "combine": f"quantile {rule.quantile:g}" if rule.combine == "quantile" else "min",
        "fallback": _endpoint(rule.fallback) if rule.fallback else None,
    }


def _endpoint(endpoint: JudgeEndpoint) -> dict[str, str]:
    return {"url": endpoint.url.rstrip("/"), "model": endpoint.model, "revision": endpoint.revision}
