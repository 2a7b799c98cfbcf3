"""Every mistake in a task file is refused before anything starts: with file, line, field and what to do."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from contracts.errors import InvalidTask, Unavailable
from contracts.tasks.loading import load_tasks
from rewards.judges.report import identity_of
from rewards.panel import built_by
from rewards.preflight import check_tasks, is_own
from rewards.sandbox.choose import first_that_holds
from rewards.sandbox.port import Sandbox
from rewards.verifiers import code
from rewards.worker import RewardsHandler
from tests.unit.rewards.judges.figures import FIGURES as ADMITTED
from tests.worlds.servers.judge import judge_server, verdict

NOWHERE = "http://127.0.0.1:9/v1"
OWN_URL = "http://127.0.0.1:8400"
HEAD = """\
name = "t"

[signals.thumbs]
type = "label"
labels = { up = 1.0, down = 0.0 }
"""
GOOD = """
[[verifiers]]
name = "good"
kind = "regex"
config = { pattern = 'a', must = "absent" }
"""
"""Stands before what is wrong: it is not to be named in its place."""
BAD_SIGNALS = '\n[signals.second]\nmeans = "acept"\n'
BAD_TOPICS = '\n[curation]\nsecrets = true\n\n[curation.topics]\ntravel = ["book a flight"]\nempty = []\n'
JUDGE = """
[[judges]]
name = "judge"
role = "{role}"
model = "m"
criteria = "It is right."
connect_seconds = 0.3
read_seconds = 0.3
retries = 0
url = "{url}"
"""
LOW = {"value": 0.2, "low": 0.1, "high": 0.3}
FIGURES = ADMITTED | {"kappa": LOW, "weighted_kappa": LOW}


def verifier(kind: str, *lines: str) -> str:
    """One that follows a good one."""
    return GOOD + "\n[[verifiers]]\n" + "\n".join(('name = "v"', f'kind = "{kind}"', *lines)) + "\n"


class Mistake(NamedTuple):
    """What follows `HEAD`, the line of it that is wrong, the field that is named, and what the remedy says."""

    content: str
    line: str
    field: str
    remedy: str


CONFIG = "[verifiers.config]"
MISTAKES = {
    "an unknown verifier": Mistake(
        verifier("regexp"), 'kind = "regexp"', "verifier 'v' kind", "there are choice, code, exact"
    ),
    "a bad regex": Mistake(
        verifier("regex", CONFIG, 'must = "match"', "pattern = 'a(b'"), "pattern = 'a(b'", "config.pattern", "missing )"
    ),
    "a regex that RE2 does not take": Mistake(
        verifier("regex", r"config = { pattern = '(a)\1' }"), r"config = { pattern = '(a)\1' }", "config.pattern",
        "no lookaround and no back-references",
    ),
    "a schema that does not compile": Mistake(
        verifier("json_schema", "[verifiers.config.schema]", 'type = "strng"'), "[verifiers.config.schema]",
        "config.schema", "wrong at `type`; mend it there",
    ),
    "a schema with a bad pattern": Mistake(
        verifier("json_schema", "[verifiers.config.schema.properties]", "a = { pattern = '(' }"),
        "[verifiers.config.schema.properties]", "config.schema", "wrong at `properties.a.pattern`; mend it there",
    ),
    "a schema that is missing, before another verifier's config": Mistake(
        '\n[[verifiers]]\nname = "v"\nkind = "json_schema"\n'
        '\n[[verifiers]]\nname = "w"\nkind = "regex"\n\n[verifiers.config]\npattern = "x"\n',
        "[[verifiers]]", "config.schema", "it needs [verifiers.config.schema]",
    ),
    "weights that do not add up": Mistake(
        verifier("exact", 'role = "component"', "weight = 1.5"), "weight = 1.5", "verifiers.1.weight",
        "change a weight, or leave `reward.signals` out",
    ),
    "weights that do not add up with those of signals": Mistake(
        "\n[reward]\nsignals = 0.7\n" + verifier("exact", 'role = "component"', "weight = 0.5"), "weight = 0.5",
        "verifiers.1.weight", "together they must be 1; change a weight",
    ),
    "an unknown meaning of a signal": Mistake(
        BAD_SIGNALS, 'means = "acept"', "signals.second.means", "'accept', 'reject', 'shown'"
    ),
    "an unknown key in a verifier's config": Mistake(
        verifier("regex", CONFIG, "pattern = 'ab'", "patern = 'ab'"), "patern = 'ab'", "config.patern",
        "remove it, or correct its name; there are pattern, must, flags",
    ),
    "an unknown key in the config of a verifier that takes none": Mistake(
        verifier("json_exact", CONFIG, "loose = true"), "loose = true", "config.loose", "remove it"
    ),
    "an unknown key in the task file": Mistake(
        "\n[reward]\nlowest = -1.0\n", "lowest = -1.0", "reward.lowest", "remove it, or correct its name"
    ),
    "a function that does not exist": Mistake(
        verifier("function", CONFIG, 'path = "nosuch.py:f"'), 'path = "nosuch.py:f"', "config.path",
        "it is `package.module:function`, installed, or `file.py:function`, relative to",
    ),
    "sql on one database": Mistake(
        verifier("sql", CONFIG, 'setup = ["CREATE TABLE t (x)"]'), CONFIG, "`databases` or `setup`",
        "give at least two databases",
    ),
    "a topic without examples": Mistake(
        BAD_TOPICS, "empty = []", "curation.topics.empty", 'a topic needs at least one example, such as ["book a flight"]'
    ),
    "a topic that is no list": Mistake(
        BAD_TOPICS.replace("[]", '"x"'), 'empty = "x"', "curation.topics.empty", 'it takes a list, for example ["a", "b"]'
    ),
    "an audit by a judge that is unknown": Mistake(
        GOOD + '\n[audit]\njudge = "nobody"\n', 'judge = "nobody"', "audit.judge", "add it under [[judges]]"
    ),
    "asking for a signal that is not declared": Mistake(
        '\n[asking]\nprobability = 0.1\nsignals = ["stars"]\n', 'signals = ["stars"]', "asking.signals",
        "ask for some of ['thumbs']",
    ),
    "a judge that was not admitted": Mistake(
        JUDGE.format(role="gate", url=NOWHERE) + JUDGE.format(role="watch", url=NOWHERE).replace('"judge"', '"other"')
        + 'admission = "other.json"\n', "[[judges]]", "admission",
        "measure it with: millrace judge admit --task",
    ),
    "a judge below its bar": Mistake(
        JUDGE.format(role="gate", url=NOWHERE) + 'admission = "judge.json"\n', 'admission = "judge.json"', "kappa",
        "Measure it again with: millrace judge admit --task",
    ),
    "a judge that is not there": Mistake(
        JUDGE.format(role="watch", url=NOWHERE), f'url = "{NOWHERE}"', "`url`",
        "start it, mend `url`, `model` or the key, or take it out of the task",
    ),
    "a judge at a port that does not exist": Mistake(
        JUDGE.format(role="watch", url="http://127.0.0.1:99999/v1"), 'url = "http://127.0.0.1:99999/v1"', "`url`",
        "start it, mend `url`",
    ),
}  # fmt: skip


def written(folder: Path, content: str) -> Path:
    """A task file, with the report of a judge that is below its bar."""
    path = folder / "task.toml"
    path.write_text(HEAD + content)
    if "judge.json" in content:
        (task,) = load_tasks((path,)).values()
        head = {"task": "t", "judge": "judge", "at": "", "labels_file": "", "labels_sha256": ""}
        report = {**head, "identity": identity_of(task.judges[0]), "figures": FIGURES}
        (folder / "judge.json").write_text(json.dumps(report))
    return path


def refusal(path: Path, check: Callable[[tuple[Path, ...]], object]) -> str:
    with pytest.raises(InvalidTask) as refused:
        check((path,))
    return refused.value.message


def preflight(paths: tuple[Path, ...]) -> None:
    check_tasks(paths, OWN_URL, lambda _: None)


def place_of(path: Path, line: str) -> str:
    """`file:line` of the first line that reads so."""
    return f"{path}:{path.read_text().splitlines().index(line) + 1}: "


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_with_file_line_field_and_remedy(tmp_path: Path, mistake: Mistake) -> None:
    path = written(tmp_path, mistake.content)
    message = refusal(path, preflight)
    assert message.startswith(place_of(path, mistake.line))
    assert mistake.field in message
    assert mistake.remedy in message
    assert "\n" not in message


def test_the_table_starts_from_something_that_is_right(tmp_path: Path) -> None:
    assert list(check_tasks((written(tmp_path, GOOD),), OWN_URL, pytest.fail)) == ["t"]


def test_code_where_no_sandbox_works_is_refused_with_the_remedy_of_each(tmp_path: Path) -> None:
    def missing() -> Sandbox:
        raise Unavailable("it is not installed; apt install it")

    path = written(tmp_path, verifier("code", CONFIG, "partial = true"))
    (task,) = load_tasks((path,)).values()
    build = partial(code.build, choose=lambda _: first_that_holds({"sandlock": missing, "bubblewrap": missing}))
    message = refusal(path, lambda _: built_by(build, task, 1))
    assert message.startswith(place_of(path, CONFIG))
    assert "verifier 'v' (code): no sandbox works on this machine, and code never runs without one" in message
    assert "sandlock: it is not installed; apt install it; bubblewrap: it is not installed; apt install it" in message


@pytest.mark.parametrize("role", ["watch", "gate"])
def test_a_judge_that_takes_the_call_and_never_answers_is_refused(tmp_path: Path, role: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        content = JUDGE.format(role=role, url=url)
        path = written(
            tmp_path, content + ("" if role == "watch" else 'admission = "judge.json"\nbar = { kappa = 0.1 }\n')
        )
        message = refusal(path, preflight)
        assert message.startswith(place_of(path, f'url = "{url}"'))
        assert f"judge 'judge' does not answer at {url}: m: ReadTimeout" in message
        # Only a start asks: a process of a running Millrace that is started again asks nobody.
        RewardsHandler(load_tasks((path,))).close()
        silent.settimeout(0.0)
        silent.accept()[0].close()  # the start asked
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_each_judge_is_asked_once_and_what_answers_is_not_refused(tmp_path: Path) -> None:
    with judge_server(lambda _: verdict("no")) as server:
        other = JUDGE.format(role="watch", url=server.url).replace('"judge"', '"other"')
        path = written(tmp_path, JUDGE.format(role="watch", url=server.url) + other)
        said: list[str] = []
        check_tasks((path,), OWN_URL, said.append)
        assert said == [f"asking judge {name!r} of task 't' at {server.url}" for name in ("judge", "other")]
        assert len(server.asked) == 2


def test_a_judge_that_is_this_millrace_is_not_asked_and_that_is_said_in_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        path = written(tmp_path, JUDGE.format(role="watch", url=f"http://localhost:{port}/v1"))
        check_tasks((path,), f"http://127.0.0.1:{port}", said.append)
        own.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            own.accept()
    place = place_of(path, f'url = "http://localhost:{port}/v1"')
    assert said == [
        f"{place}judge 'judge' is served by this Millrace, which cannot answer before its start: it is not asked now"
    ]


def test_who_judges_beside_this_millrace_is_asked_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    fallback = f'fallback = {{ url = "{NOWHERE}", model = "small" }}\n'
    path = written(tmp_path, JUDGE.format(role="watch", url=f"{OWN_URL}/v1") + fallback)
    message = refusal(path, lambda paths: check_tasks(paths, OWN_URL, said.append))
    assert message.startswith(place_of(path, fallback.strip()))
    assert [line.startswith("asking") for line in said] == [False, True]


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://localhost:8400/v1", True),
        ("http://[::1]:8400", True),
        ("http://127.0.0.1:8401/v1", False),
        ("http://judge:8400/v1", False),
        ("https://localhost/v1", False),
        ("http://localhost:84000/v1", False),
    ],
)
def test_an_address_is_ours_if_host_and_port_are(url: str, own: bool) -> None:
    assert is_own(url, OWN_URL) is own
    assert is_own(url, "http://inference:8400") is (url == "http://inference:8400")
