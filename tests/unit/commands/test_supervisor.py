from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from commands.home import claimed
from commands.supervisor import WRONG_SETTINGS, Child, GivenChild, Supervisor
from contracts.errors import InvalidSettings, Unavailable

ROOT = Path(__file__).parent.parent.parent.parent
ENDS_WITH = """
import signal, sys, time
from pathlib import Path
ended = Path(sys.argv[1])
needs = Path(sys.argv[2]) if len(sys.argv) > 2 else None
def end(*_):
    if needs is not None:
        # Whoever answers it has to be there still, for as long as this one has something to finish.
        time.sleep(0.2)
        ended.write_text("alone" if needs.exists() else "in good order")
    else:
        ended.write_text("")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(flush=True)
signal.pause()
"""


def child(folder: Path, name: str, asks: str | None) -> Child:
    arguments = [str(folder / name), *([str(folder / asks)] if asks else [])]
    process = subprocess.Popen(  # noqa: S603 our own interpreter and program
        [sys.executable, "-S", "-c", ENDS_WITH, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return Child(name, process, process.stdout, time.monotonic())


def test_who_asks_ends_before_who_answers(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, {}, lambda _: None)
    for name, asks in (("engine", None), ("web", "engine"), ("release", "web")):
        supervisor.children[name] = child(tmp_path, name, asks)

    supervisor.stop()

    assert (tmp_path / "release").read_text() == "in good order"
    assert (tmp_path / "web").read_text() == "in good order"
    assert all(one.process.returncode == 0 for one in supervisor.children.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["engine", "training"])
def test_a_process_that_is_still_importing_ends_with_its_supervisor(tmp_path: Path, name: str) -> None:
    command = [sys.executable, str(ROOT / "millrace.py"), name, "--home", str(tmp_path), "--supervised"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 our own script
    assert process.stdin is not None
    process.stdin.close()

    assert process.wait(timeout=30) == 0, "told to end, before it could look at its settings"


def test_a_home_has_one_supervisor(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(InvalidSettings, match="already"), claimed(tmp_path):
        pytest.fail("a second one was let in")
    with claimed(tmp_path):
        pass


def test_a_home_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettings, match="--home"), claimed(tmp_path / "file"):
        pytest.fail("a file was taken for a folder")


def test_watching_ends_when_told(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    supervisor = Supervisor(tmp_path, {}, lambda _: None)
    supervisor.watch(stop)  # returns at once, and starts nothing
    assert supervisor.children == {}


@pytest.mark.slow
def test_prometheus_is_told_of_a_child_that_never_lives(tmp_path: Path) -> None:
    """A home without settings: every child ends at once, long before it could be asked. Seen from outside, as Prometheus does."""
    supervisor = Supervisor(tmp_path, {}, lambda _: None)
    supervisor.start()
    entries = json.loads((tmp_path / "targets.json").read_text())
    targets = {entry["labels"]["process"]: entry["targets"][0] for entry in entries}
    own = f"http://{targets['supervisor']}/metrics"
    said = httpx.get(own).text
    for name in supervisor.children:
        assert f'millrace_child_ends_total{{child="{name}"}} 0.0' in said
    supervisor.children["episodes"].process.kill()
    supervisor.children["episodes"].process.wait()
    supervisor._look_after(supervisor.children["episodes"])
    assert 'millrace_child_ends_total{child="episodes"} 1.0' in httpx.get(own).text
    supervisor.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(own)


ON_A_CARD = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("drains", flush=True))
status = int(os.environ["STATUS"])
if status:
    sys.exit(status)
print(*sys.argv[1:], os.environ["CARD"], flush=True)
while True:
    signal.pause()
"""


def looked(supervisor: Supervisor, until: Callable[[], bool]) -> None:
    stop = threading.Event()
    deadline = time.monotonic() + 10.0
    supervisor.tend(lambda: stop.set() if until() or time.monotonic() > deadline else None)
    supervisor.watch(stop)
    assert until()


def test_a_child_comes_and_goes_while_others_run(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, {}, lambda _: None, program=(sys.executable, "-S", "-c", ON_A_CARD))
    said = supervisor.log_path("engine-2").read_text
    supervisor.add("engine-2", GivenChild(("--more",), {"CARD": "card 3", "STATUS": "0"}, ()))
    looked(supervisor, lambda: "card 3" in said())
    assert said() == f"engine --home {tmp_path} --supervised --more card 3\n"
    assert "engine" in (tmp_path / "targets.json").read_text()
    supervisor.drain("engine-2")
    looked(supervisor, lambda: "drains" in said())

    supervisor.children["engine-2"].process.kill()
    looked(supervisor, lambda: said().count("card 3") == 2)  # it dies, and is started again with the same

    supervisor.end("engine-2")
    looked(supervisor, lambda: supervisor.is_gone("engine-2"))
    assert (supervisor.is_ready("engine-2"), supervisor.is_idle("engine-2")) == (False, False)
    assert json.loads((tmp_path / "targets.json").read_text()) == []


def test_a_full_disk_ends_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise Unavailable("no space left")

    said = list[str]()
    monkeypatch.setattr("commands.supervisor.write_durably", full)
    supervisor = Supervisor(tmp_path, {}, said.append, program=(sys.executable, "-S", "-c", ON_A_CARD))
    supervisor.add("engine-2", GivenChild((), {"CARD": "1", "STATUS": "0"}, ()))
    supervisor.end("engine-2")
    looked(supervisor, lambda: supervisor.is_gone("engine-2"))
    assert len(said) == 1
    assert "no space left" in said[0]


WITH_A_RANK = """
import os, subprocess, sys
held = [int(number) for number in os.environ["MILLRACE_HELD_FDS"].split(",")]
subprocess.Popen([sys.executable, "-S", "-c", "import os; os.read(0, 1)"], stdin=held[0], pass_fds=held)
print("started", flush=True)
sys.stdin.read()
"""


def test_a_child_is_gone_once_those_that_it_started_are(tmp_path: Path) -> None:
    """They hold its card until then."""
    supervisor = Supervisor(tmp_path, {}, lambda _: None, program=(sys.executable, "-S", "-c", WITH_A_RANK))
    waits, ends = os.pipe()
    supervisor.add("training", GivenChild((), {}, (waits,)))
    looked(supervisor, lambda: "started" in supervisor.log_path("training").read_text())
    child = supervisor.children["training"]
    supervisor.end("training")
    child.process.wait()
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    supervisor.tend(lambda: None)
    supervisor.watch(stop)
    assert not supervisor.is_gone("training")
    os.close(ends)
    looked(supervisor, lambda: supervisor.is_gone("training"))
    os.close(waits)


def test_those_that_a_child_started_are_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr("commands.supervisor.LAST_STEP_SECONDS", 0.3)
    supervisor = Supervisor(tmp_path, {}, said.append, program=(sys.executable, "-S", "-c", WITH_A_RANK))
    waits, ends = os.pipe()
    supervisor.add("training", GivenChild((), {}, (waits,)))
    looked(supervisor, lambda: "started" in supervisor.log_path("training").read_text())
    supervisor.end("training")
    looked(supervisor, lambda: supervisor.is_gone("training"))
    assert "processes of training hold its card" in said[-1]
    os.close(ends)
    os.close(waits)


def test_a_child_on_a_card_that_refuses_its_settings_ends_nobody_else(tmp_path: Path) -> None:
    """Others answer users. Its keeper gives the card up."""
    supervisor = Supervisor(tmp_path, {}, lambda _: None, program=(sys.executable, "-S", "-c", ON_A_CARD))
    supervisor.add("engine-2", GivenChild((), {"CARD": "1", "STATUS": str(WRONG_SETTINGS)}, ()))
    looked(supervisor, lambda: supervisor.children["engine-2"].ends == [WRONG_SETTINGS])
    supervisor.end("engine-2")
    looked(supervisor, lambda: supervisor.is_gone("engine-2"))
