"""Bookings, mathematics, programs, tool calls, a judged task and one with signals only in one home, each gated by its own graders.

Real task files, sentinels, verifiers, sandbox, judge client and database; the engine's answers are made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from contracts.tasks.loading import load_tasks
from rewards.gating import GateGraders
from rewards.judges.report import identity_of
from runtime.database import Database
from runtime.sentinels import read_sentinels
from tests.unit.rewards.judges.figures import FIGURES
from tests.unit.rewards.verifiers.tampers import HONEST
from tests.worlds.release.gate import STOP, GateWorld
from tests.worlds.servers.judge import AskedJudge, JudgeServer, judge_server, verdict

pytestmark = pytest.mark.slow
NUM = 16
"""Sentinels of each task: a version that loses all of them has p = 1.5e-5, and the level of five comparisons is .001."""
SIGNALS = '[signals.accepted]\ntype = "bool"\nlabels = { true = 1.0, false = 0.0 }\n'
CALL = '{"name": "now", "arguments": {}}'
SUITE = '{"function": "f", "tests": [[2, 5]]}'
"""One run of each program is enough to tell the right one from the wrong one."""
VERIFIERS = {
    "booking": ('kind = "json_exact"', '{"party": 2}', '{"party": 2}', '{"party": 3}'),
    "math": ('kind = "math"', "\\frac{1}{2}", "It is \\boxed{0.5}", "It is \\boxed{2}"),
    "code": ('kind = "code"', SUITE, f"```python\n{HONEST}\n```", "```python\npass\n```"),
    "calls": (
        'kind = "tool_call"\nconfig.match = "exact"\nconfig.tools = [{ name = "now" }]',
        f"[{CALL}]",
        f"<tool_call>{CALL}</tool_call>",
        "Noon, I think",
    ),
}


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    def decide(asked: AskedJudge) -> str:
        return verdict("yes" if "dear" in asked.answer else "no")

    with judge_server(decide) as running:
        yield running


@pytest.fixture
def world(database: Database, tmp_path: Path, server: JudgeServer) -> Iterator[GateWorld]:
    parts = {name: f'[[verifiers]]\nname = "v"\nrole = "watch"\n{kind}\n' for name, (kind, *_) in VERIFIERS.items()}
    parts["letters"] = (
        f'[[judges]]\nname = "polite"\nrole = "watch"\nurl = "{server.url}"\nmodel = "m"\ncriteria = "It is polite."\n'
        'retries = 0\nadmission = "polite.json"\n[gate]\ngraders = ["polite"]\n'
    )
    parts["chat"] = ""
    paths = []
    for name, part in parts.items():
        paths.append(tmp_path / f"{name}.toml")
        paths[-1].write_text(f'name = "{name}"\n{SIGNALS}{part}')
    tasks = load_tasks(tuple(paths))
    head = {"task": "letters", "judge": "polite", "at": "", "labels_file": "", "labels_sha256": ""}
    report = {**head, "identity": identity_of(tasks["letters"].judges[0]), "figures": FIGURES}
    (tmp_path / "polite.json").write_text(json.dumps(report))
    lines = [
        {"messages": [{"role": "user", "content": str(n)}], "reference": reference, "task": name}
        for name, (_, reference, *_) in VERIFIERS.items()
        for n in range(NUM)
    ]
    lines += [{"messages": [{"role": "user", "content": str(n)}], "task": "letters"} for n in range(NUM)]
    path = tmp_path / "sentinels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    sentinels = read_sentinels(path, tasks)
    graders = GateGraders({name: tasks[name] for name in sentinels.tasks})
    graders.check(sentinels)
    texts = {name: (right, wrong) for name, (_, _, right, wrong) in VERIFIERS.items()}
    texts["letters"] = ("With dear regards", "Go away, you")
    yield GateWorld(database, sentinels, tasks=tasks, grade=graders, texts=texts)
    graders.close()


ALL = {**dict.fromkeys(VERIFIERS, NUM), "letters": NUM}


def test_a_version_that_lost_one_task_is_refused_for_that_task(world: GateWorld) -> None:
    world.right[0] = ALL
    world.point("live", 0)
    world.releaser.look(STOP)
    assert world.verdict(0).accuracy == 1.0
    for version, task in enumerate(ALL, 1):
        assert world.offer(version, {**ALL, task: 0}) == 0
        row = world.verdict(version)
        assert row.reason.startswith(f"{task}: worse than v0 (live): 0.000 against 1.000, 16 lost and 0 won of 16")
        assert row.reason.endswith("ungated: chat (none of its graders says whether an answer is right)")
        worse = [name for name, of in row.details["tasks"].items() if of["comparisons"][0]["p"] < 0.001]
        assert worse == [task]


def test_a_judge_that_is_away_holds_the_candidate_up_and_decides_nothing(world: GateWorld, server: JudgeServer) -> None:
    world.right[0] = ALL
    world.point("live", 0)
    world.releaser.look(STOP)
    server.fails = [(500, {})] * 100
    world.right[1] = ALL
    world.point("candidate", 1)
    with pytest.raises(Unavailable, match=r"sentinels\.jsonl:\d+: not graded: polite"):
        world.releaser.look(STOP)
    assert world.verdict(1) is None
    server.fails = []
    assert world.releaser.look(STOP)
    assert world.verdict(1).accepted
