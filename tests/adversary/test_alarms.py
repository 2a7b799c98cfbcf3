"""Each alarm has a break that rings it for real; hurried rules ask the same question, only sooner."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.adversary.alarms import hurry
from tests.adversary.alarms.breaks import all_breaks
from tests.worlds.paths import ROOT
from tests.yaml_files import read_yaml

GROUPS = read_yaml(ROOT / "deploy" / "alerts.yml")["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


def test_every_alarm_is_rung_by_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA", "127.0.0.1:9092")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert {one.alarm for one in all_breaks()} == RULES.keys()
    names = [one.name for one in all_breaks()]
    assert len(set(names)) == len(names)


def test_a_hurried_rule_differs_in_its_durations_alone() -> None:
    factors = hurry.factors()
    for rule in hurry.rules():
        before = RULES[rule["alert"]]
        assert rule["labels"] == before["labels"] | {"hurried": "yes"}
        plain = re.sub(r"\[\w+\]|offset \w+", "", rule["expr"])
        assert plain == re.sub(r"\[\w+\]|offset \w+", "", before["expr"])
        if factors[rule["alert"]] == 1.0:
            assert rule.get("for", "0ms") in {before.get("for"), f"{_seconds(before) * 1000:.0f}ms"}


def test_durations_are_divided_by_one_number() -> None:
    rule, factor = hurry.hurried(
        {"alert": "A", "expr": "sum(increase(x[1h])) > 2 or y unless last_over_time(y[1d] offset 30m)", "for": "10m", "labels": {}}
    )  # fmt: skip
    assert factor == 60.0
    assert rule["expr"] == "sum(increase(x[60000ms])) > 2 or y unless last_over_time(y[1d] offset 30000ms)"
    assert rule["for"] == "10000ms"


def _seconds(rule: dict[str, str]) -> float:
    found = re.fullmatch(r"(\d+)([smh])", rule.get("for", "0s"))
    assert found is not None
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
