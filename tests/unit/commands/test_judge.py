from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commands.rewards.judge import run_admit
from contracts.errors import InvalidTask, InvalidValue
from contracts.tasks.loading import load_tasks
from rewards.judges.budget import MemoryStore
from rewards.judges.pregate import MASTER_KEYS
from rewards.judges.registry import judges_of
from rewards.judges.report import read_report
from tests.worlds.servers.judge import AskedJudge, judge_server, verdict

pytestmark = pytest.mark.slow

TASK = """\
name = "t"

[signals.thumbs]
type = "label"
labels = { up = 1.0, down = 0.0 }

[[judges]]
name = "right"
weight = 0.5
url = "URL"
model = "m"
criteria = "It is right."
concurrency = 32
"""


def sums(num: int, num_prompts: int) -> list[dict[str, Any]]:
    """Half of the completions are right."""
    rows = []
    for number in range(num):
        addend, label = number // 2 % num_prompts, ("yes", "no")[number % 2]
        said = 2 * addend if label == "yes" else 1000 + number
        rows.append({"prompt": f"{addend} + {addend}?", "completion": f"It is {said}.", "label": label})
    return rows


def pairs(num: int, num_prompts: int) -> list[dict[str, Any]]:
    """The better one is first in every second pair."""
    rows = []
    for number in range(num):
        addend = number % num_prompts
        pair = [f"It is {2 * addend}.", f"It is {1000 + number}."]
        better = number // num_prompts % 2
        rows.append({"prompt": f"{addend} + {addend}?", "pair": pair[:: -1 if better else 1], "better": better})
    return rows


def is_right(asked: AskedJudge, name: str) -> bool:
    found = re.search(r"(\d+) \+", asked.sections["CONVERSATION"])
    assert found is not None
    return asked.sections[name] == f"It is {2 * int(found[1])}."


def honest(asked: AskedJudge) -> str:
    if "ANSWER" in asked.sections:
        return verdict("yes" if is_right(asked, "ANSWER") else "no")
    return verdict("first" if is_right(asked, "FIRST ANSWER") else "second")


def fooled(asked: AskedJudge) -> str:
    """Takes some of the master keys for an answer."""
    return verdict("yes") if asked.answer.startswith("Let") else honest(asked)


def files(folder: Path, url: str, rows: list[dict[str, Any]], more: str = "") -> tuple[Path, Path]:
    task, labels = folder / "task.toml", folder / "labels.jsonl"
    task.write_text(TASK.replace("URL", url) + more)
    labels.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return task, labels


def test_a_good_judge_is_admitted_and_its_task_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with judge_server(honest) as server:
        task, labels = files(tmp_path, server.url, sums(40, 20) + pairs(20, 20))
        assert run_admit(task, "right", labels, tmp_path / "report.json") == 0
        said = capsys.readouterr()
        assert "kappa" in said.out
        assert 'admission = "report.json"' in said.out
        assert "40 labels: the intervals are wide" in said.out
        assert "right: 330 of 330 answers judged" in said.err
        task.write_text(task.read_text() + 'admission = "report.json"\n')
        (loaded,) = load_tasks((task,)).values()
        assert len(judges_of(loaded, MemoryStore())) == 1
    figures = read_report(tmp_path / "report.json").figures
    assert figures.kappa is not None
    assert figures.sensitivity is not None
    assert figures.master_keys is not None
    assert figures.order_flips is not None
    assert (figures.kappa.value, figures.sensitivity.value, figures.master_keys.value) == (1.0, 1.0, 0.0)
    assert figures.sensitivity.low == pytest.approx(0.8389, abs=1e-3)
    assert (figures.order_flips.value, figures.num_pairs) == (0.0, 20)
    assert figures.num_master_keys == 5 * len(MASTER_KEYS)
    assert figures.num_calls == 40 + figures.num_master_keys + 2 * 20
    assert figures.num_tokens == 120 * figures.num_calls


@pytest.mark.parametrize(
    ("decide", "says"),
    [
        (lambda _: verdict("no"), "kappa 0.000 is below 0.6"),
        (fooled, "of the master keys pass"),
        (
            lambda asked: verdict("first") if "FIRST ANSWER" in asked.sections else honest(asked),
            "100.0% of the pairs flip",
        ),
        (lambda asked: honest(asked) if is_right(asked, "ANSWER") else "hm", "a verdict on 50% of the labels"),
    ],
)
def test_a_judge_below_its_bar_is_not_admitted_and_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], decide: Any, says: str
) -> None:
    with judge_server(decide) as server:
        rows = sums(20, 1) + (pairs(6, 1) if "flip" in says else [])
        task, labels = files(tmp_path, server.url, rows)
        assert run_admit(task, "right", labels, None) == 1
        assert says in capsys.readouterr().out
        text = task.read_text()
        task.write_text(text + 'admission = "right.admission.json"\n')
        (loaded,) = load_tasks((task,)).values()
        with pytest.raises(InvalidTask, match=re.escape(says)):
            judges_of(loaded, MemoryStore())


def test_a_pairwise_judge_is_measured_on_pairs(tmp_path: Path) -> None:
    with judge_server(honest) as server:
        more = 'protocol = "pairwise"\n'
        task, labels = files(tmp_path, server.url, pairs(20, 2), more)
        assert run_admit(task, "right", labels, tmp_path / "report.json") == 0
        figures = read_report(tmp_path / "report.json").figures
        assert (figures.num_labels, figures.num_pairs) == (20, 20)
        assert figures.weighted_kappa is not None
        assert figures.weighted_kappa.value == 1.0
        labels.write_text(json.dumps(sums(1, 1)[0]))
        with pytest.raises(InvalidValue, match="nothing to measure a pairwise judge on"):
            run_admit(task, "right", labels, None)


def test_a_fallback_is_measured_by_itself(tmp_path: Path) -> None:
    with judge_server(honest) as server, judge_server(fooled) as second:
        more = f'fallback = {{ url = "{second.url}", model = "second" }}\n'
        task, labels = files(tmp_path, server.url, sums(10, 1), more)
        assert run_admit(task, "right", labels, tmp_path / "report.json") == 1
    report = read_report(tmp_path / "report.json")
    assert report.figures.master_keys is not None
    assert report.fallback is not None
    assert report.fallback.master_keys is not None
    assert (report.figures.master_keys.value, report.fallback.master_keys.value > 0.05) == (0.0, True)


def test_three_levels_are_weighed(tmp_path: Path) -> None:
    rows = [{"prompt": "?", "completion": f"c{n}", "label": n % 3} for n in range(30)]
    names = ["wrong", "partly", "right"]
    with judge_server(
        lambda asked: verdict(names[int(asked.answer[1:] or 0) % 3 if asked.answer[:1] == "c" else 0])
    ) as server:
        task, labels = files(tmp_path, server.url, rows, f"levels = {json.dumps(names)}\n")
        assert run_admit(task, "right", labels, tmp_path / "report.json") == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "labels.jsonl:2: "),
        ("[]", "labels.jsonl:2: a label is a JSON object"),
        ('{"completion": "x", "label": "yes"}', "labels.jsonl:2: `prompt`"),
        ('{"prompt": "x", "label": "yes"}', "labels.jsonl:2: `completion`"),
        ('{"prompt": "x", "completion": "y", "label": "maybe"}', "labels.jsonl:2: `label` is one of no, yes"),
        ('{"prompt": "x", "completion": "y"}', "labels.jsonl:2: `label`"),
        ('{"prompt": "x", "pair": ["y"], "better": 0}', "labels.jsonl:2: `pair` is two texts"),
        ('{"prompt": "x", "pair": ["y", "z"], "better": 2}', "labels.jsonl:2: `better`"),
    ],
)
def test_a_wrong_label_is_named_by_its_line(tmp_path: Path, line: str, says: str) -> None:
    task, labels = files(tmp_path, "http://127.0.0.1:9/v1", sums(1, 1))
    labels.write_text(labels.read_text() + line + "\n")
    with pytest.raises(InvalidValue, match=re.escape(says)):
        run_admit(task, "right", labels, None)


def test_mistakes_on_the_command_line_are_named(tmp_path: Path) -> None:
    task, labels = files(tmp_path, "http://127.0.0.1:9/v1", sums(1, 1))
    with pytest.raises(InvalidTask, match="no judge is called 'left'; it has right"):
        run_admit(task, "left", labels, None)
    with pytest.raises(InvalidTask, match="does not answer"):
        run_admit(task, "right", labels, None)
    labels.unlink()
    with pytest.raises(InvalidValue, match=r"labels\.jsonl: No such file"):
        run_admit(task, "right", labels, None)
    labels.write_text("\n")
    with pytest.raises(InvalidValue, match="nothing to measure"):
        run_admit(task, "right", labels, None)
