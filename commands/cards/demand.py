"""What a home's processes say of users, samples and the live version: the same gauges that an autoscaler of Kubernetes reads.

In: `/metrics` of each child. Out: sums. Waits for: each of them, for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

IN_FLIGHT, LAG, LIVE_AGE = "millrace_users_in_flight", "millrace_lag_records", "millrace_live_age_seconds"
_WANTED = {IN_FLIGHT: {}, LAG: {"group": "training"}, LIVE_AGE: {}}
_ASKED = {"web", "inference"}
"""They are asked: each counts the users of its own."""
_TELL = _ASKED | {"training", "release"}
_SECONDS = 1.0


class HomeFigures(NamedTuple):
    """Sums over the processes. None: no process told; of `in_flight`, also if one that answers users did not: a part would pass for less load."""

    in_flight: float | None
    backlog: float | None
    live_age: float | None


def read_figures(addresses: Mapping[str, str]) -> HomeFigures:
    """By name of a child, host and port of its operations."""
    return figures_of({name: _text(address) for name, address in addresses.items() if _kind(name) in _TELL})


def figures_of(texts: Mapping[str, str]) -> HomeFigures:
    """The figures of answers of /metrics, by name of a child; empty: none came.

    Dashboard and trainer both count what waits for the trainer: the larger number stands.
    """
    told: dict[str, list[float]] = {}
    is_silent = False
    for child, text in texts.items():
        lines = "\n".join(line for line in text.splitlines() if line.startswith(tuple(_WANTED)))
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(lines + "\n"):
            for name, labels, value, *_ in family.samples:
                if name in _WANTED and _WANTED[name].items() <= labels.items():
                    sums[name] = sums.get(name, 0.0) + value
        is_silent |= _kind(child) in _ASKED and IN_FLIGHT not in sums
        for name, value in sums.items():
            told.setdefault(name, []).append(value)
    in_flight, lag, age = None if is_silent else told.get(IN_FLIGHT), told.get(LAG), told.get(LIVE_AGE)
    return HomeFigures(sum(in_flight) if in_flight else None, max(lag) if lag else None, max(age) if age else None)


def _kind(child: str) -> str:
    return child.partition("-")[0]


def _text(address: str) -> str:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=_SECONDS).text
    except httpx.HTTPError:
        return ""
