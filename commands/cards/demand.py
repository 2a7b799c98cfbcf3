"""What a home's processes say of users, samples and the live version: the same gauges that an autoscaler of Kubernetes reads.

In: `/metrics` of each child. Out: sums. Waits for: each of them, for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

IN_FLIGHT, LAG, LIVE_AGE = "millrace_users_in_flight", "millrace_lag_records", "millrace_live_age_seconds"
_WANTED = {IN_FLIGHT: {}, LAG: {"group": "training"}, LIVE_AGE: {}}
_SECONDS = 1.0


class HomeFigures(NamedTuple):
    """Sums over the processes. None: no process told."""

    in_flight: float | None
    backlog: float | None
    live_age: float | None


def read_figures(addresses: Mapping[str, str]) -> HomeFigures:
    """By name of a child, host and port of its operations."""
    texts = (_text(address) for name, address in addresses.items() if _tells(name))
    return figures_of(text for text in texts if text is not None)


def figures_of(texts: Iterable[str]) -> HomeFigures:
    """The figures of several answers of /metrics. Dashboard and trainer both count what waits for the trainer: the larger number stands."""
    told: dict[str, list[float]] = {}
    for text in texts:
        lines = "\n".join(line for line in text.splitlines() if line.startswith(tuple(_WANTED)))
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(lines + "\n"):
            for name, labels, value, *_ in family.samples:
                if name in _WANTED and _WANTED[name].items() <= labels.items():
                    sums[name] = sums.get(name, 0.0) + value
        for name, value in sums.items():
            told.setdefault(name, []).append(value)
    in_flight, lag, age = told.get(IN_FLIGHT), told.get(LAG), told.get(LIVE_AGE)
    return HomeFigures(sum(in_flight) if in_flight else None, max(lag) if lag else None, max(age) if age else None)


def _tells(name: str) -> bool:
    return name.partition("-")[0] in {"web", "inference", "training", "release"}


def _text(address: str) -> str | None:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=_SECONDS).text
    except httpx.HTTPError:
        return None
