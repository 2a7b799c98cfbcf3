"""What doctor says of a template: its family, and whether sessions go on token for token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.findings import Finding
from commands.template_check import bundled_name, findings_here, template_findings
from tests.chat_templates.bundled import bundled_names, bundled_source, make_bundled
from tests.each_case import each_case
from tests.models import BASE
from tests.worlds.hostile_files import HOSTILE_FILES


def told(folder: Path, *stops: str) -> dict[str, Finding]:
    if stops:
        tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        ids = {token["content"]: token["id"] for token in tokens}
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[stop] for stop in stops]}))
    return {finding.name: finding for finding in findings_here(folder)}


def test_a_bundled_template_is_named_and_what_breaks_its_sessions_too(tmp_path: Path) -> None:
    found = told(make_bundled(tmp_path, "qwen3"), "<|im_end|>")
    assert "the same as qwen3 of trl: renders tools, reasoning is told apart" in found["template"].says
    assert found["sessions"] == Finding(
        "sessions",
        False,
        False,
        "the next call goes on token for token after a question, a tool's result, reasoning and a tool's result; it is rendered anew "
        "after reasoning and a question (reasoning_dropped), see docs/agents.md; answers end with <|im_end|>",
    )


def test_an_end_that_the_template_does_not_write_breaks(tmp_path: Path) -> None:
    found = told(make_bundled(tmp_path, "gptoss"), "<|return|>", "<|call|>")["sessions"]
    assert not found.good
    assert "a question (template)" in found.says
    assert "goes on token for token after a tool's result" in found.says


def test_a_template_of_ones_own_is_named_by_its_model() -> None:
    found = told(BASE)
    assert "none of those that trl bundles (model_type " in found["template"].says
    assert found["sessions"].says.startswith("the next call goes on token for token after a question")
    assert found["sessions"].good


def test_a_template_that_cannot_be_read_has_one_finding(tmp_path: Path) -> None:
    folder = make_bundled(tmp_path, "qwen3")
    (folder / "chat_template.jinja").write_text("{% if %}")
    assert told(folder).keys() == {"template"}


@each_case("name", bundled_names())
def test_every_bundled_template_is_found(name: str) -> None:
    found = bundled_name(bundled_source(name))
    assert found is not None
    assert bundled_source(found) == bundled_source(name)


def test_it_is_looked_at_in_a_process_of_its_own() -> None:
    assert template_findings(BASE) == list(findings_here(BASE))


ENDLESS = {
    "counts": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "counts before it runs": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "grows": "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
}


@pytest.mark.parametrize(
    "name", ["counts before it runs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("counts", "grows"))]
)
def test_a_template_without_end_is_a_finding(name: str, tmp_path: Path) -> None:
    folder = make_bundled(tmp_path, "qwen3")
    (folder / "chat_template.jinja").write_text(ENDLESS[name])
    [found] = template_findings(folder, cpu_seconds=2)
    assert (found.name, found.good, found.needed) == ("template", False, True)
    assert "so it loops" in found.says or "MemoryError" in found.says


BROKEN = {
    "{{ messages[0]['content'] * 10**13 }}": "MemoryError",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}": "RecursionError",
    "{{ 1 / (messages | length - 1) }}": "ZeroDivisionError",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "not valid: RecursionError",
    "{{ '%d' | format(2.0 ** 1000 * 2.0 ** 1000) }}": "NameError",
    "{{ messages[0].content | int(base=99) }}{{ '{:q}'.format(1) }}": "ValueError",
    "{{ {}['a']['b'] }}": "refused the messages",
    "{{ 'a' * 10**7 }}": "has 10000000 characters",
}


def test_a_template_that_breaks_is_a_finding(tmp_path: Path) -> None:
    folder = make_bundled(tmp_path, "qwen3")
    for template, says in BROKEN.items():
        (folder / "chat_template.jinja").write_text(template)
        [found] = findings_here(folder)
        assert (found.name, found.good, found.needed) == ("template", False, True), template
        assert says in found.says, template


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_hostile_file_beside_it_is_a_finding(name: str, tmp_path: Path) -> None:
    for kind, hostile in HOSTILE_FILES.items():
        if name.endswith(".jinja") and kind in {"deep", "another kind"}:
            continue  # a template may be of brackets
        folder = make_bundled(tmp_path / kind, "qwen3")
        (folder / name).unlink()
        hostile(folder / name)
        [found] = findings_here(folder)
        assert not found.good
        assert name in found.says or "chat template" in found.says
