"""What is refused before a start, on the real command line and on a home that stood before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from commands.home import claimed, prepare_home
from contracts.errors import InvalidSettings, InvalidTask
from rewards.__main__ import main as run_rewards
from rewards.preflight import check_tasks
from rewards.sandbox.choose import MAKERS, sandbox_or_problem
from runtime.settings import Settings
from tests.command_line import refused_up, run_here
from tests.worlds.servers.judge import judge_server, verdict

ROOT = Path(__file__).parents[3]
PRODUCT = ROOT / "examples" / "reservations"
NOWHERE = "http://127.0.0.1:9/v1"
TASK = (PRODUCT / "task.toml").read_text()
JUDGE = '\n[[judges]]\nname = "watcher"\nrole = "watch"\nmodel = "m"\ncriteria = "It is polite."\nurl = "{url}"\n'
CODE = '\n[[verifiers]]\nname = "program"\nkind = "code"\n\n[verifiers.config]\npartial = true\n'
WEIGHTS = '\n[[verifiers]]\nname = "same"\nkind = "exact"\nrole = "component"\nweight = 1.5\n'


def settings_of(folder: Path, content: str, **changes: object) -> Settings:
    task = folder / "task.toml"
    task.write_text(content)
    held = Settings(home=folder / "home", run="r", policy="p", base=str(PRODUCT / "base"), tasks=(task,))
    return held.model_copy(update=changes)


def millrace(*arguments: str, environ: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "millrace.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=120)  # noqa: S603 our own script


def everything(folder: Path) -> dict[str, tuple[float, bytes]]:
    """Every file with its content and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime, path.read_bytes()) for path in files}


@pytest.mark.parametrize(
    ("command", "content", "line", "says"),
    [
        ("up", TASK.replace("json_exact", "json_exakt"), 'kind = "json_exakt"', "there is no verifier 'json_exakt'; there are"),
        ("init", TASK + WEIGHTS, "weight = 1.5", "verifiers.2.weight: weights of the components add up to 1.5"),
        ("up", TASK + JUDGE.format(url=NOWHERE), f'url = "{NOWHERE}"', "judge 'watcher' does not answer at"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_the_command_line_refuses_in_one_line_and_makes_nothing(
    tmp_path: Path, command: str, content: str, line: str, says: str
) -> None:
    path, home = tmp_path / "task.toml", tmp_path / "home"
    path.write_text(content)
    given = ["--policy", str(PRODUCT / "base"), "--task", str(path), "--home", str(home)]
    ran = refused_up(*given) if command == "up" else run_here(command, *given)
    (said,) = ran.stderr.splitlines()
    assert ran.returncode == 1
    assert said.startswith(f"millrace: {path}:{content.splitlines().index(line) + 1}: ")
    assert says in said
    assert not home.exists()


@pytest.mark.slow
def test_without_any_sandbox_the_command_line_refuses_code_and_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "sandlock.py").write_text('raise ImportError("it is not here")\n')
    path, home = tmp_path / "task.toml", tmp_path / "home"
    path.write_text(TASK + CODE)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)}
    ran = millrace(
        *("up", "--policy", str(PRODUCT / "base"), "--task", str(path), "--home", str(home), "--port", "0"),
        environ=environ,
    )
    assert ran.returncode == 1
    line = path.read_text().splitlines().index("partial = true")
    assert f"millrace: {path}:{line}: verifier 'program' (code): no sandbox works on this machine" in ran.stderr
    for remedy in ("pip install sandlock", "install bubblewrap", "install util-linux"):
        assert remedy in ran.stderr
    assert not home.exists()


def test_a_home_that_stood_before_is_as_it_was_after_a_refusal(tmp_path: Path) -> None:
    prepare_home(settings_of(tmp_path, TASK), {})
    before = everything(tmp_path / "home")
    with pytest.raises(InvalidTask, match="does not answer"):
        prepare_home(settings_of(tmp_path, TASK + JUDGE.format(url=NOWHERE), device="cuda"), {})
    assert everything(tmp_path / "home") == before


def test_a_worker_that_is_started_again_does_not_mind_that_a_judge_is_down(tmp_path: Path) -> None:
    with judge_server(lambda _: verdict("no")) as server:
        settings = settings_of(tmp_path, TASK + JUDGE.format(url=server.url))
        prepare_home(settings, {})
        assert len(server.asked) == 1
    stop = threading.Event()
    stop.set()
    run_rewards(settings.home, stop)
    with pytest.raises(InvalidTask, match="does not answer"):
        prepare_home(settings, {})


def test_a_judge_that_this_millrace_will_serve_keeps_nobody_from_starting_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = TASK + JUDGE.format(url="http://127.0.0.1:9/v1")
    prepare_home(settings_of(tmp_path, content, web_port=9), {})
    place = f"{tmp_path / 'task.toml'}:{len(content.splitlines())}"
    assert f"{place}: judge 'watcher' is served by this Millrace" in capsys.readouterr().out


def test_a_refused_start_takes_away_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "up.lock").touch()
    for name in ("new", "mine", "held"):
        with pytest.raises(InvalidSettings), claimed(tmp_path / name):
            raise InvalidSettings("no")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["held", "held/up.lock", "mine"]
    with claimed(tmp_path / "new"):
        (tmp_path / "new" / "millrace.toml").touch()
    assert (tmp_path / "new" / "up.lock").exists()


def test_where_code_runs_and_what_that_cannot_hide_is_said_before_the_start(tmp_path: Path) -> None:
    told: list[str] = []
    for sandbox in ("sandlock", "bubblewrap"):
        if isinstance(found := sandbox_or_problem(MAKERS[sandbox]), str):
            pytest.skip(found)
        path = tmp_path / f"{sandbox}.toml"
        path.write_text(TASK + CODE.replace("partial = true", f'sandbox = "{sandbox}"'))
        check_tasks((path,), NOWHERE, told.append)
    assert told[0].endswith(
        "verifier 'program' runs code in sandlock (it cannot hide which files and processes exist, and the size of files)"
    )
    assert told[1].endswith("verifier 'program' runs code in bubblewrap")
    assert "bubblewrap.toml:" in told[1]
