"""The alarms of `deploy/alerts.yml` once more, with shorter durations: what waits for a day then rings within minutes.

In: a rule as Prometheus reads it. Out: the same expression, whose `for`, ranges and offsets are divided by one number. Thresholds stay.
"""

from __future__ import annotations

import re
from typing import Any

from tests.worlds.paths import ROOT
from tests.yaml_files import read_yaml

LONGEST_SECONDS = 60.0
"""The longest duration of a hurried rule. No rule becomes slower."""
LONGER_SECONDS = {
    "CandidatesRefused": 300.0,
    "LogOrDatabaseAway": 120.0,
    "TrainStands": 420.0,
    "VersionsRevoked": 900.0,
}
"""For rules that count what takes longer than a minute to happen so often."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LOOK_BACK = "[1d]"
"""How far a rule looks for an older sample of a series. It is no wait, so it stays."""
_DURATION = re.compile(r"\[(\d+)([smhd])\]|offset (\d+)([smhd])")


def hurried(rule: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The hurried rule, labelled `hurried="yes"`, and by how much its durations were divided (1: none was too long)."""
    durations = [_seconds(*found) for found in _DURATION.findall(rule["expr"].replace(_LOOK_BACK, ""))]
    held = re.fullmatch(r"(\d+)([smhd])", rule.get("for", "0s"))
    if held is None:
        raise ValueError(f"{rule['alert']}: write `for` as one number and one unit, such as 90s, not {rule['for']}")
    waits = float(held[1]) * _UNITS[held[2]]
    factor = max(1.0, max([waits, *durations]) / LONGER_SECONDS.get(rule["alert"], LONGEST_SECONDS))

    def shorter(found: re.Match[str]) -> str:
        if found[0] == _LOOK_BACK:
            return found[0]
        milliseconds = round(_seconds(*found.groups()) / factor * 1000)
        return f"[{milliseconds}ms]" if found[0].startswith("[") else f"offset {milliseconds}ms"

    again = rule | {"expr": _DURATION.sub(shorter, rule["expr"]), "labels": rule["labels"] | {"hurried": "yes"}}
    return again | ({"for": f"{round(waits / factor * 1000)}ms"} if waits else {}), factor


def rules() -> list[dict[str, Any]]:
    """Every hurried rule."""
    return [hurried(rule)[0] for rule in _rules()]


def factors() -> dict[str, float]:
    """By how much the durations of each alarm are divided."""
    return {rule["alert"]: round(hurried(rule)[1], 1) for rule in _rules()}


def _rules() -> list[dict[str, Any]]:
    groups = read_yaml(ROOT / "deploy" / "alerts.yml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _seconds(*found: str | None) -> float:
    number, unit = (part for part in found if part)
    return float(number) * _UNITS[unit]
