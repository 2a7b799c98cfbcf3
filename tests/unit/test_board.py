"""The board, the alarms and the page for operators against the code: they name only metrics and routes that exist, and leave none out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from contracts.topics import RETENTION_DAYS
from runtime import metrics
from runtime.log.spool import MAX_SPOOL_BYTES
from runtime.operations import LONGEST_STEP_SECONDS, LONGEST_WORK_SECONDS
from tests.each_case import each_case
from tests.yaml_files import read_yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "millrace.json").read_text())
RULES = read_yaml(DEPLOY / "alerts.yml")["groups"][0]["rules"]
PROMETHEUS = read_yaml(DEPLOY / "prometheus.yml")
SERVICES = read_yaml(ROOT / "docker-compose.yml")["services"]
MANUAL = (ROOT / "docs" / "operating.md").read_text()
NOT_SHOWN: set[str] = set()
"""Metrics that neither board nor alarms show on purpose."""
SCRAPED = {"job", "instance", "process", "replica"}
"""Labels that every series gets from Prometheus' configuration, targets.json included."""


def registry() -> dict[str, tuple[str, set[str]]]:
    """Every series: its metric and its labels."""
    series = {}
    for metric in vars(metrics).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        [family] = metric.describe()
        labels = set(metric._labelnames)
        if family.type == "counter":
            series[f"{family.name}_total"] = (family.name, labels)
        elif family.type == "histogram":
            for suffix in ("sum", "count"):
                series[f"{family.name}_{suffix}"] = (family.name, labels)
            series[f"{family.name}_bucket"] = (family.name, labels | {"le"})
        else:
            series[family.name] = (family.name, labels)
    return series


SERIES = registry()


def queries() -> Iterator[str]:
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (mark["expr"] for mark in BOARD["annotations"]["list"])
    yield from (rule["expr"] for rule in RULES)


def names(query: str) -> set[str]:
    return set(re.findall(r"\bmillrace_[a-z_]+", query))


@each_case("query", sorted(set(queries())))
def test_a_query_asks_for_series_and_labels_that_there_are(query: str) -> None:
    assert names(query) - SERIES.keys() == set()
    known = SCRAPED.union(*(SERIES[name][1] for name in names(query)))
    for inside in re.findall(r"\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*[=!]~?", inside)) <= known
    for inside in re.findall(r"\bby \(([^)]*)\)", query):
        assert {label.strip() for label in inside.split(",")} <= known
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)


def test_a_counter_is_only_asked_for_its_rate() -> None:
    for query in queries():
        for name in names(query):
            if name.endswith(("_total", "_bucket", "_sum", "_count")):
                rest = re.sub(
                    rf"\({name}(\{{[^}}]*\}})? unless last_over_time\({name}(\{{[^}}]*\}})?\[1d\] offset \d+[mh]\)\)",
                    "",
                    query,
                )
                assert re.search(rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[", rest), query
                assert len(re.findall(rf"\b{name}\b", rest)) == len(
                    re.findall(rf"(?:rate|increase)\({name}\b", rest)
                ), query


def test_every_metric_is_seen() -> None:
    shown = {SERIES[name][0] for query in queries() for name in names(query)}
    assert {metric for metric, _ in SERIES.values()} - shown == NOT_SHOWN


def test_the_board_is_as_grafana_wants_it() -> None:
    panels = BOARD["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Loop", "Serving", "Learning", "Releases", "Ledger",
    ]  # fmt: skip
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in covered) < 24
        assert not covered & cells, f"{panel['title']} covers another"
        cells |= covered
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["description"]


def test_legends_use_labels_that_the_query_keeps() -> None:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target


def test_moves_are_marked_on_every_panel() -> None:
    marks = {mark["name"]: mark for mark in BOARD["annotations"]["list"]}
    assert marks.keys() == {"Train", "Live version", "Hold"}
    for mark in marks.values():
        assert mark["enable"]
        assert mark["datasource"] == BOARD["panels"][1]["datasource"]
        for label in re.findall(r"\{\{(\w+)\}\}", mark["titleFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", mark["expr"]), mark


def test_grafana_finds_board_and_data() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = read_yaml(provisioning / "datasources" / "prometheus.yml")["datasources"]
    [provider] = read_yaml(provisioning / "dashboards" / "millrace.yml")["providers"]
    [variable] = BOARD["templating"]["list"]
    assert variable["current"]["value"] == source["uid"]
    assert source["url"] == "http://prometheus:9090"
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounted["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounted["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"


def test_prometheus_asks_every_process_on_its_port_for_operators() -> None:
    [services, homes] = PROMETHEUS["scrape_configs"]
    [found] = services["dns_sd_configs"]
    ours = {name.removesuffix("-2") for name, service in SERVICES.items() if service.get("build")} - {"init"}
    assert set(found["names"]) == ours
    told = SERVICES["engine"]["environment"]["MILLRACE_OPERATIONS"]
    assert str(found["port"]) == told.rpartition(":")[2]
    [[path]] = [entry["files"] for entry in homes["file_sd_configs"]]
    assert (DEPLOY / path).resolve() == ROOT / "runs" / "home" / "targets.json"
    assert PROMETHEUS["rule_files"] == ["alerts.yml"]
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    assert mounted["./deploy/alerts.yml"] == "/etc/prometheus/alerts.yml"


def test_alarms_know_the_limits_of_the_code() -> None:
    rules = {rule["alert"]: rule for rule in RULES}
    stuck = rules["ProcessStuck"]["expr"]
    assert [float(limit) for limit in re.findall(r"> (\d+)", stuck)] == [LONGEST_STEP_SECONDS, LONGEST_WORK_SECONDS]
    assert float(rules["SpoolFillingUp"]["expr"].rpartition("> ")[2]) == MAX_SPOOL_BYTES / 2
    jobs = [config["job_name"] for config in PROMETHEUS["scrape_configs"]]
    assert all(job.startswith("millrace") for job in jobs)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]


def test_the_manual_knows_how_long_the_log_keeps_things() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) days \|", MANUAL, re.MULTILINE))
    assert {topic: int(days) for topic, days in rows.items()} == RETENTION_DAYS


def test_every_metric_is_set_somewhere() -> None:
    words = {
        word
        for folder in ("commands", "engines", "runtime", "services", "pipelines", "rewards")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "runtime" / "metrics.py"
        for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", path.read_text())
    }
    names = [name for name, kept in vars(metrics).items() if isinstance(kept, MetricWrapperBase)]
    assert len(names) > 20
    assert [name for name in names if name not in words] == []
