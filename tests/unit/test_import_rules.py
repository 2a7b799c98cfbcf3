"""Each import rule of `pyproject.toml` is broken by the import that it forbids, and by no other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.unit.test_architecture import ROOT

_RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
_LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
_FORBIDDEN = {
    "Processes meet only on the floors below them": ("contracts/__init__.py", "runtime"),
    "weights could be installed alone: it knows errors, faults and files": (
        "weights/__init__.py",
        "contracts.ids",
    ),
    "contracts opens nothing: no client, no server": ("contracts/__init__.py", "httpx"),
    "Floors inside weights": ("weights/files.py", "weights.replica"),
    "Service folders are independent": ("services/feedback/__init__.py", "services.engine"),
    "Engine folders are independent": ("engines/own/__init__.py", "engines.vllm.settings"),
    "Pipeline folders are independent": ("pipelines/release/__init__.py", "pipelines.episodes"),
    "torch stays in policy, engine, training and the plug-in of vLLM": ("rewards/__init__.py", "torch"),
    "Only runtime.log.kafka knows Kafka, only runtime.replicas knows Redis": ("pipelines/__init__.py", "kafka"),
    "fastapi only in services": ("rewards/__init__.py", "fastapi"),
}
"""Rule to an import that it forbids: the file, and what is imported there."""


def test_every_rule_has_a_forbidden_import() -> None:
    assert {rule["name"] for rule in _RULES["contracts"]} == _FORBIDDEN.keys()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("house")
    for package in _RULES["root_packages"]:
        shutil.copytree(ROOT / package, root / package, ignore=lambda _, names: [n for n in names if not _is_code(n)])
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def _is_code(name: str) -> bool:
    return name.endswith(".py") or "." not in name


def _broken(root: Path) -> set[str]:
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _LINT, "--no-cache"], cwd=root, env={}, check=False, capture_output=True, text=True
    )
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)\b", ran.stdout, re.MULTILINE))
    assert verdicts.keys() == _FORBIDDEN.keys(), ran.stdout + ran.stderr
    return {rule for rule, verdict in verdicts.items() if verdict == "BROKEN"}


@pytest.mark.parametrize("rule", [None, *_FORBIDDEN])
def test_a_forbidden_import_breaks_its_rule_and_no_other(copy: Path, rule: str | None) -> None:
    if rule is None:
        assert _broken(copy) == set()
        return
    file, imported = _FORBIDDEN[rule]
    path = copy / file
    text = path.read_text()
    path.write_text(f"{text}\nimport {imported}\n")
    try:
        assert _broken(copy) == {rule}
    finally:
        path.write_text(text)
