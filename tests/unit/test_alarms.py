"""The alarms ring: `promtool` runs the cases of deploy/, every alarm has one, and what they count is there before it is counted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, Counter, Gauge
from starlette.responses import Response

from runtime import metrics
from services.serving import Measured
from tests.yaml_files import read_yaml

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = {rule["alert"]: rule for rule in read_yaml(DEPLOY / "alerts.yml")["groups"][0]["rules"]}
FILES = ("alerts_test.yml", "alerts_hours_test.yml")
CASES: list[dict[str, Any]] = [case for name in FILES for case in read_yaml(DEPLOY / name)["tests"]]
BORN_LATER = {
    "CHILD_ENDS": "by the supervisor, which knows its children (test_supervisor.py)",
    "REQUESTS": "by each service (below)",
    "TRAIN_MOVES": "by the conductor, which has the list of moves",
    "ENGINE_REQUESTS_MOVED": "a rate over five minutes: the first count changes nothing",
    "SAMPLED": "a share of over a thousand answers: the first count changes nothing",
}
OPEN = {"TRAINING_STEP_ERRORS": "names of exceptions", "WEIGHT_JUNK": "codes of refusals"}
"""Counters whose labels nobody knows beforehand. Their alarms also look at new series."""


def counters() -> dict[str, tuple[str, Counter]]:
    """By the name of the series: name and object of every counter with labels that an alarm uses."""
    asked = {name for rule in RULES.values() for name in re.findall(r"\bmillrace_[a-z_]+_total", rule["expr"])}
    kept = {name: metric for name, metric in vars(metrics).items() if isinstance(metric, Counter)}
    found = {f"{metric._name}_total": (name, metric) for name, metric in kept.items()}
    return {series: found[series] for series in asked if found[series][1]._labelnames}


def with_summary(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule without the annotations that have no template: the cases say its summary alone."""
    return rule | {"annotations": {"summary": rule["annotations"]["summary"]}}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
def test_every_alarm_is_silent_and_then_fires(name: str, tmp_path: Path) -> None:
    """Each case beside the rules that it asks for: all of them, looked at each minute of two days, take a minute."""
    file = read_yaml(DEPLOY / name)
    assert file["rule_files"] == ["alerts.yml"]
    names = [f"case{number}.yml" for number in range(len(file["tests"]))]
    for own, case in zip(names, file["tests"], strict=True):
        asked = {looked["alertname"] for looked in case["alert_rule_test"]}
        rules = {
            "groups": [{"name": "asked", "rules": [with_summary(RULES[alert]) for alert in RULES if alert in asked]}]
        }
        (tmp_path / f"rules_{own}").write_text(yaml.safe_dump(rules))
        (tmp_path / own).write_text(yaml.safe_dump(file | {"rule_files": [f"rules_{own}"], "tests": [case]}))
    for command in (["check", "rules", str(DEPLOY / "alerts.yml")], ["test", "rules", *names]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603, S607 Debian
        assert done.returncode == 0, re.sub(r"\n+", "\n", done.stdout + done.stderr)


def test_every_alarm_has_a_case_that_begins_before_its_series() -> None:
    for alert in RULES:
        mine = [case for case in CASES if case["name"].partition(":")[0] == alert]
        assert mine, alert
        assert any(series["values"].startswith("_x") for case in mine for series in case["input_series"]), alert
        for case in mine:
            silent, fires = case["alert_rule_test"]
            assert silent["alertname"] == fires["alertname"] == alert
            assert "exp_alerts" not in silent
            [expected, *_] = fires["exp_alerts"]
            assert expected["exp_labels"]["severity"] == RULES[alert]["labels"]["severity"]


def test_a_healthy_home_is_asked_for_every_alarm() -> None:
    [healthy] = [case for case in CASES if case["name"] == "all is well"]
    assert [looked["alertname"] for looked in healthy["alert_rule_test"]] == list(RULES)
    assert all("exp_alerts" not in looked for looked in healthy["alert_rule_test"])
    given = {re.split(r"[{ ]", series["series"])[0] for series in healthy["input_series"]}
    asked = {name for rule in RULES.values() for name in re.findall(r"\b(?:millrace|process)_[a-z_]+", rule["expr"])}
    assert asked - given - {"process_start_time_seconds"} == set()


def test_counters_of_alarms_are_born_at_zero() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import runtime.metrics, prometheus_client as p; print(p.generate_latest().decode())"],
        cwd=DEPLOY.parent, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    born = dict(re.findall(r"^(millrace_[a-z_]+_total\{[^}]*\}) (\S+)$", told, re.MULTILINE))
    assert set(born.values()) == {"0.0"}
    names = {name.partition("{")[0] for name in born}
    used = counters()
    assert {name for series, (name, _) in used.items() if series not in names} == {*BORN_LATER, *OPEN}
    for rule in RULES.values():
        for series, matchers in re.findall(r"(millrace_[a-z_]+_total)\{([^}]*)\}", rule["expr"]):
            for matcher in re.findall(r'\w+="[^"]*"', matchers) if series in names else ():
                assert any(name.startswith(series) and matcher in name for name in born), (series, matcher)


def test_every_count_that_the_code_names_is_born() -> None:
    """A new label value in the code needs its place among those that are born."""
    named = {name: series for series, (name, _) in counters().items() if name not in {*BORN_LATER, *OPEN}}
    code = [path for folder in ("engines", "runtime", "services", "pipelines", "rewards") for path in folder_of(folder)]
    for path in code:
        for name, value in re.findall(r'\b([A-Z_]+)\.labels\("(\w+)"\)', path.read_text()):
            if name in named:
                [label] = vars(metrics)[name]._labelnames
                assert REGISTRY.get_sample_value(named[name], {label: value}) is not None, (path, value)
        for value in re.findall(r'note_fault\("(\w+)"', path.read_text()):
            assert REGISTRY.get_sample_value("millrace_dashboard_faults_total", {"what": value}) is not None, value


def folder_of(name: str) -> list[Path]:
    return [path for path in (DEPLOY.parent / name).rglob("*.py") if path.name != "metrics.py"]


_ASK_FOR_SILENCE = ("NothingPublished", "GateSilent")
"""They ring when nothing is counted."""


def test_alarms_see_counters_that_are_born_above_zero() -> None:
    """Where one count is enough to ring, or the labels are open, the first value counts too."""
    for alert, rule in RULES.items():
        for series in set(re.findall(r"increase\((millrace_[a-z_]+_total)[^)]*\)\) > 0", rule["expr"])):
            if f"{series}[" in rule["expr"] and alert not in _ASK_FOR_SILENCE and "unless sum" not in rule["expr"]:
                assert f"unless last_over_time({series}" in rule["expr"], alert
    for name in OPEN:
        [series] = [series for series, (own, _) in counters().items() if own == name]
        assert any(f"unless last_over_time({series}" in rule["expr"] for rule in RULES.values()), name


def test_a_least_value_is_that_of_the_process_that_sets_it() -> None:
    """Every process exports every gauge without labels, as 0 if it never sets it."""
    gauges = {metric._name: metric for metric in vars(metrics).values() if isinstance(metric, Gauge)}
    found = [
        (alert, matchers)
        for alert, rule in RULES.items()
        for name, matchers in re.findall(r"\bmin(?: by \(\w+\))?\((millrace_\w+)(\{[^}]*\})?", rule["expr"])
        if not gauges[name]._labelnames
    ]
    assert [alert for alert, _ in found] == ["LedgerNotSealed"]
    assert all('process="' in matchers for _, matchers in found)


def test_a_service_counts_its_errors_from_zero() -> None:
    Measured(Response(), "newborn")
    for status in ("0", "500", "502", "503", "504"):
        labels = {"service": "newborn", "status": status}
        assert REGISTRY.get_sample_value("millrace_requests_total", labels) == 0.0
