from __future__ import annotations

import sys
from pathlib import Path

import pytest

from contracts.errors import InvalidTask
from contracts.tasks import Task
from rewards.panel import graders_of
from rewards.verifiers.check import Answer
from rewards.verifiers.registry import PACKAGED, kinds, load_kind

MODULE = """
from rewards.verifiers.check import right, wrong
from rewards.verifiers.registry import Kind

VERSION = 7
KIND = Kind("the answer shouts", is_slow=True)


def build(config, context):
    return lambda answer: right() if answer.text.isupper() else wrong("it is quiet")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with the kinds `shouting` and `gone`; the second one's module does not exist."""
    (tmp_path / "shouting_verifier.py").write_text(MODULE)
    facts = tmp_path / "shouting-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[millrace.verifiers]\nshouting = shouting_verifier\ngone = shouting_nowhere\nexact = shouting_verifier\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def a_task(kind: str) -> Task:
    rule = {"name": "loud", "kind": kind, "role": "component"}
    return Task.model_validate({"name": "t", "signals": {"none": {"type": "text"}}, "verifiers": [rule]})


@pytest.mark.usefixtures("package")
def test_an_installed_package_adds_a_kind() -> None:
    assert "shouting" in kinds()
    (grader,) = graders_of(a_task("shouting"))
    assert (grader.is_slow, grader.label.partition("#")[0]) == (True, "shouting/7")
    assert [score.value for score in grader.score_all([Answer("YES"), Answer("no")])] == [1.0, 0.0]


@pytest.mark.usefixtures("package")
def test_no_package_replaces_a_kind_of_ours() -> None:
    _, module = load_kind("exact")
    assert module.__name__ == "rewards.verifiers.exact"


@pytest.mark.usefixtures("package")
def test_a_package_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(
        InvalidTask, match="verifier 'loud' kind: verifier 'gone' cannot be loaded from shouting_nowhere"
    ):
        graders_of(a_task("gone"))


@pytest.mark.parametrize("kind", sorted(PACKAGED))
def test_our_own_package_is_named_where_it_is_not_installed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert kind not in kinds()
    with pytest.raises(InvalidTask, match=f"'{kind}' is in the package examples.verifiers, which is not installed"):
        load_kind(kind)
