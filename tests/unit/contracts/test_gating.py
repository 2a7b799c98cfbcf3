"""Tasks say what proves them, sentinels name their task, and every mistake is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidSettings, InvalidTask
from contracts.tasks import Task
from contracts.tasks.gate import COMPARING_KINDS, FORM_KINDS, NEEDING_REFERENCE, PROVING_KINDS
from contracts.tasks.loading import load_tasks
from rewards.verifiers.registry import KINDS, PACKAGED
from runtime.sentinels import read_sentinels

SIGNALS = '[signals.accepted]\ntype = "bool"\nlabels = { true = 1.0, false = 0.0 }\n'
TOOLS = 'config.tools = [{ name = "now" }]'


def verifier(name: str, kind: str, *more: str) -> str:
    return "\n".join(["[[verifiers]]", f'name = "{name}"', f'kind = "{kind}"', 'role = "watch"', *more, ""])


def judge(name: str, *more: str) -> str:
    fields = [f'name = "{name}"', 'url = "http://127.0.0.1:9/v1"', 'model = "m"', 'criteria = "It is right."', *more]
    return "\n".join(["[[judges]]", *fields, ""])


def load(folder: Path, *parts: str, name: str = "t", gate: str = "") -> Task:
    path = folder / f"{name}.toml"
    path.write_text(
        "\n".join([f'name = "{name}"', SIGNALS, *parts, *(["[gate]", f"graders = {gate}"] if gate else [])])
    )
    (task,) = load_tasks((path,)).values()
    return task


def test_every_kind_of_verifier_either_proves_or_looks_at_the_form() -> None:
    assert PROVING_KINDS | FORM_KINDS | COMPARING_KINDS.keys() == KINDS.keys() | PACKAGED.keys()
    assert not PROVING_KINDS & FORM_KINDS
    assert not NEEDING_REFERENCE - KINDS.keys() - PACKAGED.keys()


@pytest.mark.parametrize(
    ("parts", "graders"),
    [
        ([], ()),
        ([verifier("shape", "json_schema"), verifier("style", "regex"), verifier("form", "instruction")], ()),
        ([verifier("calls", "tool_call", TOOLS)], ()),
        ([verifier("calls", "tool_call", TOOLS, 'config.match = "exact"')], ("calls",)),
        ([verifier("shape", "json_schema"), verifier("same", "json_exact")], ("same",)),
        ([verifier("sum", "math"), verifier("run", "code")], ("sum", "run")),
        ([judge("good", "weight = 0.5", 'admission = "a.json"')], ("good",)),
        ([judge("holdout", 'role = "watch"')], ()),
        ([judge("reply", 'role = "signal"', 'about = "follow_up"', 'admission = "a.json"')], ()),
    ],
)
def test_by_default_what_looks_at_the_content_proves_a_task(
    tmp_path: Path, parts: list[str], graders: tuple[str, ...]
) -> None:
    assert load(tmp_path, *parts).gate_graders == graders


def test_a_task_may_name_who_proves_it_watchers_too(tmp_path: Path) -> None:
    parts = [verifier("sum", "math"), verifier("style", "regex"), judge("holdout", 'role = "watch"')]
    assert load(tmp_path, *parts, gate='["holdout", "style"]').gate_graders == ("holdout", "style")


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ('["nobody"]', "no verifier or judge is called 'nobody'; there are calls, pairs, reply, style, sum"),
        ('["style", "calls"]', "style, calls: only the form of an answer is checked, so a wrong answer would pass"),
        ("[]", "no grader: only the form of an answer is checked"),
        ('["sum", "reply"]', "judge 'reply' cannot gate: it judges what the user wrote next"),
        ('["sum", "pairs"]', "judge 'pairs' cannot gate: it compares the choices of one completion"),
    ],
)
def test_a_gate_that_proves_nothing_is_refused_by_file_and_line(tmp_path: Path, gate: str, says: str) -> None:
    parts = [
        verifier("sum", "math"),
        verifier("style", "regex"),
        verifier("calls", "tool_call", TOOLS),
        judge("reply", 'role = "watch"', 'about = "follow_up"'),
        judge("pairs", 'role = "watch"', 'protocol = "pairwise"'),
    ]
    with pytest.raises(InvalidTask) as refused:
        load(tmp_path, *parts, gate=gate)
    line = (tmp_path / "t.toml").read_text().splitlines().index(f"graders = {gate}") + 1
    assert refused.value.message.startswith(f"{tmp_path}/t.toml:{line}: gate.graders: {says}")


def test_who_gates_changes_no_score_so_it_changes_no_hash(tmp_path: Path) -> None:
    parts = [verifier("sum", "math"), verifier("run", "code")]
    assert load(tmp_path, *parts).hash == load(tmp_path, *parts, gate='["run"]').hash


def tasks(folder: Path) -> dict[str, Task]:
    """One that is gated, one with signals only."""
    made = [load(folder, name="chat"), load(folder, verifier("sum", "math"), name="math")]
    return {task.name: task for task in made}


def write(folder: Path, *items: Any) -> Path:
    path = folder / "s.jsonl"
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in items) + "\n")
    return path


ASK = [{"role": "user", "content": "1 + 1?"}]


def test_a_sentinel_is_of_the_one_gated_task_if_it_names_none(tmp_path: Path) -> None:
    found = read_sentinels(write(tmp_path, {"messages": ASK, "reference": 2}), tasks(tmp_path))
    (item,) = found.items
    assert (item.task, item.metadata, item.where) == ("math", {"reference": "2"}, f"{tmp_path}/s.jsonl:1")
    assert found.ungated == {"chat": "none of its graders says whether an answer is right"}


def test_of_several_gated_tasks_the_first_of_the_home_is_meant(tmp_path: Path) -> None:
    several = {name: load(tmp_path, verifier("sum", "math"), name=name) for name in ("second", "first")}
    found = read_sentinels(write(tmp_path, {"messages": ASK}, {"messages": ASK, "task": "first"}), several)
    assert [item.task for item in found.items] == ["second", "first"]
    assert found.places_of("first") == [1]
    assert found.ungated == {}


def test_a_gated_task_without_sentinels_is_ungated_and_so_is_a_home_without_any(tmp_path: Path) -> None:
    several = {name: load(tmp_path, verifier("sum", "math"), name=name) for name in ("one", "two")}
    found = read_sentinels(write(tmp_path, {"messages": ASK, "task": "one"}), several)
    assert found.ungated == {"two": "no sentinel is of this task"}
    assert read_sentinels(None, several).ungated.keys() == {"one", "two"}


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"messages": ASK, "task": "nosuch"}, "no task is called 'nosuch'; there are chat, math"),
        ({"messages": ASK, "task": "chat"}, "task 'chat' is ungated"),
        ({"messages": ASK, "task": 7}, "no task is called 7"),
        ({"messages": []}, "a sentinel is"),
        ({"prompt": "1 + 1?"}, "a sentinel is"),
        ({"messages": ["1 + 1?"]}, "each of `messages` is an object"),
        ({"messages": ASK, "answer": 2}, "has no field 'answer'"),
        ({"messages": ASK, "metadata": "x"}, "`metadata` is an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_sentinel_with_a_mistake_is_refused_by_file_and_line(tmp_path: Path, item: Any, says: str) -> None:
    path = write(tmp_path, {"messages": ASK, "reference": 2}, item)
    with pytest.raises(InvalidSettings) as refused:
        read_sentinels(path, tasks(tmp_path))
    assert refused.value.message.startswith(f"{path}:2: ")
    assert says in refused.value.message


def test_each_sentinel_has_a_seed_of_its_own_that_stays(tmp_path: Path) -> None:
    path = write(tmp_path, *[{"messages": ASK, "reference": 2}] * 50)
    first, again = (read_sentinels(path, tasks(tmp_path)).items for _ in range(2))
    seeds = [item.seed for item in first]
    assert seeds == [item.seed for item in again]
    assert len({*seeds, *(item.seed_of(7) for item in first)}) == 100
    assert all(0 <= seed < 2**31 for item in first for seed in (item.seed, item.seed_of(7)))


def test_answers_sampled_in_another_way_are_answers_to_another_set(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": ASK, "reference": 2})
    before = read_sentinels(path, tasks(tmp_path)).hash
    sharper = load(tmp_path, verifier("sum", "math"), "[sampling]\ntemperature = 0.3", name="math")
    assert read_sentinels(path, {"math": sharper}).hash != before
    assert read_sentinels(path, tasks(tmp_path)).hash == before
