"""What the documents name exists: files, folders, pages, sections; numbers are those of the code; and the front page stays short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from commands.options import EMBEDDED, Servers
from commands.room import memory_need
from commands.supervisor import SERVERS, WORKERS, replica_names
from commands.up import listen
from contracts.checkpoints import CheckpointReport
from contracts.memory.shapes import ModelShape
from contracts.memory.training import WAYS, memory_of
from runtime.train_settings import TrainSettings

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOPS = "benchmarks|commands|contracts|deploy|engines|examples|migrations|pipelines|policy|rewards|runtime|services|tests|weights"
MOST_WORDS = 1500
MOST_FILES = 5
NUMBERS = {6: "six", 8: "eight", 12: "twelve"}
WEIGHTS = 10**12
"""So many that a process without a model counts for nothing."""


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    for name in re.findall(rf"`((?:{TOPS})/[\w./*-]+)`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_programs_targets_and_metrics_exist(page: Path) -> None:
    text = page.read_text()
    for module in re.findall(r"python -m ((?:benchmarks|policy|tests)(?:\.[a-z_]+)+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for target in re.findall(r"`make ([a-z-]+)[^`]*`", text):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
    known = set(re.findall(r'"(millrace_\w+)"', (ROOT / "runtime" / "metrics.py").read_text()))
    for name in re.findall(r"`(millrace_[a-z_]+)", text):
        assert {name, re.sub(r"_(total|sum|count|bucket)$", "", name)} & known, name


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS


def test_each_likely_change_needs_few_files() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## The twelve most likely changes")[1].split("## Rules")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| Change", "|---"))]
    assert len(rows) == 12
    for row in rows:
        assert 1 <= len(set(re.findall(r"`[\w/*.]+(?:\.\w+|/)`", row))) <= MOST_FILES, row


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def text_of(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def started(servers: Servers) -> list[str]:
    """The processes that `millrace up` starts."""
    sockets = listen(0, split=servers.is_shared)
    for opened in sockets.values():
        opened.close()
    return [child for name in (*sockets, *WORKERS) for child in replica_names(name, servers.replicas.get(name, 1))]


def test_pages_name_the_bytes_per_weight_that_doctor_computes() -> None:
    need = memory_need(CheckpointReport(num_weights=WEIGHTS), "cpu")
    trainer, peak = round(need.trainer / WEIGHTS), round(need.trainer_peak / WEIGHTS)
    readme = text_of("README.md")
    assert f"The trainer holds {trainer} bytes per parameter" in readme
    assert f"and {peak} while it saves" in readme
    [parts] = re.findall(r"bytes per parameter, host and GPU together \(([^)]*)\)", readme)
    assert sum(int(number) for number in re.findall(r"\d+", parts)) == trainer
    assert f"**Trainer:** {trainer} bytes per weight between steps" in text_of("docs/models.md")
    assert f"{peak} while it saves a checkpoint" in text_of("docs/models.md")


def test_pages_name_the_bytes_per_weight_of_a_gpu() -> None:
    slot = round(memory_need(CheckpointReport(num_weights=WEIGHTS), "cuda").slot / WEIGHTS)
    [trainer] = re.findall(r"The GPU has at most (\d+) of them", text_of("README.md"))
    assert f"and {slot} for each slot" in text_of("README.md")
    assert f"{slot} bytes per weight for each slot" in text_of("docs/models.md")
    shape = ModelShape(WEIGHTS, (), num_layers=1, width=1, vocabulary=1, num_experts=0, num_active=0)
    device, host = (memory_of(shape, way) for way in WAYS[:2])
    assert device.base + device.state == int(trainer) * WEIGHTS
    for need, side in ((device, "the device"), (host, "the host")):
        per_weight = (need.base + need.state, round(need.host / WEIGHTS) * WEIGHTS)
        card, beside = (total // WEIGHTS for total in per_weight)
        assert f"| Whole weights, masters on {side} | {card} | {beside} |" in text_of("docs/models.md")


def test_pages_count_the_processes_that_are_started() -> None:
    architecture = text_of("docs/architecture.md")
    kinds = {*SERVERS, *WORKERS} - {"web"}
    assert f"{NUMBERS[len(kinds)].capitalize()} kinds of processes" in architecture
    assert f"`millrace up` starts {NUMBERS[len(started(EMBEDDED))]}" in architecture
    shared = Servers(kafka="kafka:9092", database_url="postgresql://database")
    assert f"with Kafka and PostgreSQL it starts {NUMBERS[len(started(shared))]}" in architecture
    for name in ("docs/architecture.md", "docs/operating.md"):
        rows = re.findall(r"^\| `(\w+)` \|", (ROOT / name).read_text(), re.MULTILINE)
        assert set(rows) >= kinds, name


def test_pages_name_the_stages_of_the_train() -> None:
    *first, last = (f"{share:.0%}"[:-1] for share in TrainSettings().stages)
    shares = f"{', '.join(first)} and {last}%"
    assert f"shows it to {shares} of them" in text_of("README.md")
    assert f"| {', '.join(first)}, {last}% |" in text_of("docs/release.md")


def nodes_of(*folders: str) -> Iterator[ast.AST]:
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            yield from ast.walk(ast.parse(path.read_text()))


def strings(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_code_of_refused_weights_says_what_to_do() -> None:
    section = (ROOT / "docs" / "repair.md").read_text().partition("## Weights are refused")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    named = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    calls = (node for node in nodes_of("engines", "weights") if isinstance(node, ast.Call))
    raised = strings(call.args[0] for call in calls if ast.unparse(call.func) == "WeightsRefused")
    assert len(raised) > 30
    assert raised - named == set()
    assert named - strings(nodes_of("contracts", "engines", "pipelines", "policy", "weights")) == set()
