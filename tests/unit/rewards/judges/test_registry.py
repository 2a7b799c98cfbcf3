from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.errors import InvalidTask
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.judges.budget import MemoryStore
from rewards.judges.registry import judges_of, new_http, probe
from rewards.judges.report import below, identity_of, label_of, read_report
from rewards.verifiers.check import Answer
from tests.unit.rewards.judges.figures import FIGURE, FIGURES
from tests.worlds.servers.judge import JudgeServer, judge_server, verdict

TASK = """\
name = "t"

[signals.thumbs]
type = "label"
labels = { up = 1.0, down = 0.0 }

[[judges]]
name = "first"
role = "watch"
url = "URL"
model = "m"
criteria = "It is short."

[[judges]]
name = "second"
weight = 0.5
url = "URL"
model = "org/model"
criteria = "It is right."
"""


def a_task(folder: Path, url: str = "http://127.0.0.1:9/v1", more: str = "", **report: Any) -> Task:
    """The task in a file; with `report`, admitted so, its identity right unless told otherwise."""
    path = folder / "task.toml"
    path.write_text(TASK.replace("URL", url) + ('admission = "second.json"\n' if report else "") + more)
    (task,) = load_tasks((path,)).values()
    if report:
        identity = identity_of(task.judges[1])
        head = {"task": "t", "judge": "second", "at": "", "labels_file": "", "labels_sha256": "", "identity": identity}
        (folder / "second.json").write_text(json.dumps({**head, "figures": FIGURES, **report}))
    return task


def test_an_admitted_judge_is_ready_to_run(tmp_path: Path, server: JudgeServer, http: httpx.Client) -> None:
    task = a_task(tmp_path, server.url, figures=FIGURES)
    watch, second = judges_of(task, MemoryStore(), http)
    assert (watch.role, watch.weight, watch.is_slow) == ("watch", 0.0, True)
    assert (second.name, second.role, second.weight, second.is_slow) == ("second", "component", 0.5, True)
    kind, model, rubric = (
        second.label.split("#")[0].split("/", 1)[0],
        *second.label.removeprefix("judge/").rsplit("/", 1),
    )
    assert (kind, model, len(rubric.split("#")[0]), rubric.split("#")[1]) == ("judge", "org/model", 8, task.hash)
    (score,) = second.score_all([Answer("right", key="c:0")])
    assert (score.value, score.weight, score.grader) == (1.0, 0.5, second.label)


def test_imported_answers_cost_nothing_unless_a_judge_asks_for_them(tmp_path: Path) -> None:
    task = a_task(tmp_path, more="imported = true\n", figures=FIGURES)
    assert [grader.is_for_imported for grader in judges_of(task, MemoryStore())] == [False, True]


def test_a_judge_that_was_not_admitted_may_only_watch(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask) as refused:
        judges_of(a_task(tmp_path), MemoryStore())
    message = refused.value.message
    assert f"{tmp_path}/task.toml:14: judge 'second' was not admitted" in message
    assert f"millrace judge admit --task {tmp_path}/task.toml --judge second --labels LABELS.jsonl" in message
    assert 'admission = "second.admission.json"' in message


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ({"figures": {**FIGURES, "weighted_kappa": {**FIGURE, "value": 0.59}}}, "kappa 0.590 is below 0.6"),
        ({"figures": {**FIGURES, "weighted_kappa": None}}, "kappa is undefined"),
        ({"figures": {**FIGURES, "order_flips": {**FIGURE, "value": 0.06}}}, "6.0% of the pairs flip"),
        ({"figures": {**FIGURES, "master_keys": {**FIGURE, "value": 0.02}}}, "2.0% of the master keys pass"),
        ({"figures": {**FIGURES, "master_keys": None}}, "master keys were not measured"),
        ({"figures": {**FIGURES, "answered": 0.8}}, "a verdict on 80% of the labels"),
        ({"identity": {"rubric": "other"}}, "another judge: rubric, protocol"),
        ({"figures": {}}, "not a report of an admission"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_judge_below_its_bar_is_refused_with_line_and_remedy(
    tmp_path: Path, report: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidTask) as refused:
        judges_of(a_task(tmp_path, **report), MemoryStore())
    message = refused.value.message
    assert says in message
    assert f"{tmp_path}/task.toml:20: judge 'second' may not decide" in message
    assert f"--out {tmp_path}/second.json" in message


def test_a_report_that_is_not_there_is_named(tmp_path: Path) -> None:
    task = a_task(tmp_path, figures=FIGURES)
    (tmp_path / "second.json").unlink()
    with pytest.raises(InvalidTask, match=r"second\.json: No such file"):
        judges_of(task, MemoryStore())


def test_an_admission_does_not_outlive_a_change_of_the_judge(tmp_path: Path) -> None:
    a_task(tmp_path, figures=FIGURES)
    path = tmp_path / "task.toml"
    for old, new in (("It is right.", "It is rather right."), ("org/model", "org/newer")):
        text = path.read_text()
        path.write_text(text.replace(old, new))
        (task,) = load_tasks((path,)).values()
        with pytest.raises(InvalidTask, match="admitted as another judge"):
            judges_of(task, MemoryStore())
        path.write_text(text)


def test_a_fallback_has_to_be_admitted_too(tmp_path: Path) -> None:
    fallback = 'fallback = { url = "http://127.0.0.1:9/v1", model = "small" }\n'
    worse = {**FIGURES, "weighted_kappa": {**FIGURE, "value": 0.2}}
    for report in ({"fallback": None}, {"fallback": worse}):
        with pytest.raises(InvalidTask, match="fallback: "):
            judges_of(a_task(tmp_path, more=fallback, **report), MemoryStore())
    assert judges_of(a_task(tmp_path, more=fallback, fallback=FIGURES), MemoryStore())


def test_a_pairwise_judge_needs_its_flips_measured(tmp_path: Path) -> None:
    task = a_task(tmp_path, figures=FIGURES)
    figures = read_report(tmp_path / "second.json").figures
    assert below(task.judges[1].bar, False, figures) == []
    assert below(task.judges[1].bar, True, figures) == ["order flips were not measured: the labels have no pairs"]


def test_a_key_that_is_not_set_is_named_with_its_line(tmp_path: Path) -> None:
    more = 'api_key_env = "SECOND_KEY"\n'
    with pytest.raises(InvalidTask, match=r"task\.toml:21: judge 'second' .* variable SECOND_KEY.* export SECOND_KEY="):
        judges_of(a_task(tmp_path, more=more, figures=FIGURES), MemoryStore(), environ={"SECOND_KEY": ""})


def test_a_key_is_sent_and_only_to_its_endpoint(tmp_path: Path, server: JudgeServer, http: httpx.Client) -> None:
    task = a_task(tmp_path, server.url, more='api_key_env = "SECOND_KEY"\n', figures=FIGURES)
    for grader in judges_of(task, MemoryStore(), http, environ={"SECOND_KEY": "s3"}):
        grader.score_all([Answer("right", key="c:0")])
    assert [asked.headers.get("authorization") for asked in server.asked] == [None, "Bearer s3"]


def probe_all(task: Task, http: httpx.Client) -> None:
    for index in range(len(task.judges)):
        probe(task, index, http)


def test_a_judge_that_never_answers_is_refused_at_start(tmp_path: Path, http: httpx.Client) -> None:
    with judge_server(lambda _: verdict("no")) as running:
        task = a_task(tmp_path, running.url)
        probe_all(task, http)
        assert len(running.asked) == 2
        running.fails = [(429, {"retry-after": "60"})]
        probe_all(task, http)  # too busy is not dead
        running.fails = [(401, {})]
        with pytest.raises(
            InvalidTask, match=r"task\.toml:10: judge 'first' does not answer at http.*HTTP 401.*mend `url`"
        ):
            probe_all(task, http)
    with new_http() as fresh, pytest.raises(InvalidTask, match="does not answer"):
        probe_all(task, fresh)
    assert not http.is_closed


def test_the_member_that_does_not_answer_is_the_one_that_is_named(
    tmp_path: Path, server: JudgeServer, http: httpx.Client
) -> None:
    path = tmp_path / "task.toml"
    head, _, _ = TASK.partition("[[judges]]")
    member = '\n[[judges.members]]\nurl = "{}"\nmodel = "m"\n'
    judge = '[[judges]]\nname = "panel"\nrole = "watch"\ncriteria = "c"\n'
    path.write_text(head + judge + member.format(server.url) + member.format("http://127.0.0.1:9/v1"))
    (task,) = load_tasks((path,)).values()
    with pytest.raises(InvalidTask, match=r"task\.toml:17: judge 'panel' does not answer at http://127\.0\.0\.1:9/v1"):
        probe_all(task, http)
    assert label_of(task.judges[0], "h").startswith("judge/m+m/")


def test_a_task_without_judges_needs_nobody(tmp_path: Path) -> None:
    task = a_task(tmp_path).model_copy(update={"judges": ()})
    assert judges_of(task, MemoryStore()) == []
