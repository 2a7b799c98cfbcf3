"""Which sandbox is taken, that none is taken that leaks, and that an ordinary user has one too."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import InvalidTask, Unavailable
from rewards.sandbox.choose import (
    MAKERS,
    described,
    first_that_holds,
    sandbox_named,
    sandbox_or_problem,
    visible_files,
    ways_out,
)
from rewards.sandbox.port import BY_SIGNAL, Ran, Sandbox, SandboxBroken, SandboxLimits
from rewards.sandbox.programs import Program, ProgramFailed
from rewards.verifiers.code import CodeConfig
from tests.worlds.sandboxes import NoSandbox

ROOT = Path(__file__).parents[4]
AS_NOBODY = """
set -e
umask 022
if ! setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$1/bin"; then
    mount --bind "$1" /mnt
    mount -t tmpfs -o mode=755 tmpfs "$2"
    mkdir -p "$1"
    mount --move /mnt "$1"
fi
prefix=$1
shift 2
cd /
exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i "PYTHONPATH=$PYTHONPATH" PATH=/usr/bin:/bin "$@"
"""
PROBE = """
import os
from rewards.sandbox.choose import MAKERS, sandbox_named
from rewards.sandbox.port import SandboxLimits
from rewards.sandbox.programs import Program
assert os.getuid() == 65534
for name in ("auto", *MAKERS):
    try:
        print(name, Program("def f(x): return x + 1").call(sandbox_named(name), "f", [1], SandboxLimits()))
    except Exception as error:
        print(name, error)
"""


ATTACKED = """
import sys
from tests.adversary.attacks import sandbox
from tests.adversary.attacks.__main__ import main
sandbox.MAKERS = {sys.argv[1]: sandbox.MAKERS[sys.argv[1]]}
sys.exit(main(["sandbox"]))
"""


class Unable:
    name = "unable"

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        del stdin, limits
        raise SandboxBroken("no such system call")


def missing() -> Sandbox:
    raise Unavailable("it is not installed; apt install it")


def test_one_is_found_here_and_it_holds() -> None:
    found = sandbox_named("auto")
    assert ways_out(found) == []
    assert sandbox_named("auto") is found


def test_what_leaks_is_refused_by_name_with_what_it_lets_through() -> None:
    with pytest.raises(
        Unavailable, match="bare: it does not keep a program from reading files, writing files"
    ) as refused:
        first_that_holds({"bare": NoSandbox})
    assert "changing its grader's limits" in refused.value.message


def test_the_probe_tries_every_door() -> None:
    """Each of them is open where there are no walls, so none is found closed for another reason."""
    open_doors = {
        "reading files", "writing files", "changing files", "reaching the network", "opening sockets",
        "sending through a pair of sockets", "opening sockets by io_uring", "locking files of the system",
        "signalling its grader", "asking the kernel to signal its grader", "slowing others down",
        "changing its grader's limits", "starting processes without end",
    }  # fmt: skip
    met = {
        "a port", "an abstract socket", "shared memory", "a queue of messages", "a named queue", "a lock",
        "a temporary file", "each other's numbers", "the time of /dev/null",
    }  # fmt: skip
    found = {*ways_out(NoSandbox())}
    assert found >= open_doors
    assert found >= {f"meeting another by {place}" for place in met}


def test_without_its_filter_nothing_runs() -> None:
    for broken in (b"", bytes(8), bytes(7)):
        refused = sandbox_or_problem(lambda broken=broken: NoSandbox(broken))  # type: ignore[misc]
        assert isinstance(refused, str)
        assert "the filter of system calls cannot be installed: seccomp was refused" in refused


@pytest.mark.parametrize("name", MAKERS)
def test_the_filter_is_the_same_in_all_and_stays_with_children(name: str) -> None:
    sandbox = sandbox_or_problem(MAKERS[name])
    if isinstance(sandbox, str):
        pytest.skip(sandbox)
    source = """
import os, sys
def f():
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    if os.fork() == 0:
        asks = f"import _socket, os\\ntry: _socket.socket(2, 1, 262)\\nexcept OSError as error: os.write({writing}, str(error.errno).encode())"
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", asks])
    os.close(writing)
    return os.read(reading, 10).decode()
"""
    assert Program(source).call(sandbox, "f", [], SandboxLimits()) == str(errno.EPERM)


HONEST = """
import asyncio, os, queue, random, resource, select, signal, socket, sqlite3, subprocess, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
async def later():
    await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(3)))
    return "loop"
def f():
    found = [asyncio.run(later())]
    with ThreadPoolExecutor(2) as pool:
        found.append(sum(pool.map(abs, [-1, -2])))
    child = os.fork()
    if child == 0:
        time.sleep(9)
    os.kill(child, signal.SIGTERM)
    found.append(os.waitpid(child, 0)[1])
    if (child := os.fork()) == 0:
        os.abort()
    found.append(os.waitpid(child, 0)[1])
    one, other = socket.socketpair()
    one.send(b"x")
    found += [other.recv(1).decode(), len(select.select([other], [], [], 0)[0])]
    found.append(subprocess.run([sys.executable, "-I", "-S", "-c", "print(1)"], capture_output=True).stdout.decode())
    found.append(sqlite3.connect(":memory:").execute("select 1").fetchone())
    signal.setitimer(signal.ITIMER_REAL, 9)
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    signal.raise_signal(signal.SIGCHLD)
    return [*found, sys.stdin.isatty(), os.nice(0) < 20, random.SystemRandom().random() < 1]
"""


@pytest.fixture
def private_files() -> Iterator[None]:
    """As in every process of ours."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private_files")
@pytest.mark.parametrize("name", MAKERS)
def test_honest_programs_miss_nothing(name: str) -> None:
    sandbox = sandbox_or_problem(MAKERS[name])
    if isinstance(sandbox, str):
        pytest.skip(sandbox)
    found = Program(HONEST).call(sandbox, "f", [], SandboxLimits())
    assert found == ["loop", 3, 15, 6, "x", 0, "1\n", [1], False, True, True]


def test_a_sandbox_says_which_files_it_cannot_hide() -> None:
    assert len(visible_files(NoSandbox())) == 3
    assert described(NoSandbox()).startswith("none (it cannot hide which files")
    for name in ("bubblewrap", "namespaces"):
        held = sandbox_or_problem(MAKERS[name])
        assert isinstance(held, str) or described(held) == name


def test_where_none_holds_each_is_named_with_its_reason() -> None:
    with pytest.raises(Unavailable) as refused:
        first_that_holds({"first": missing, "second": Unable})
    assert "never runs without" in refused.value.message
    assert "first: it is not installed; apt install it" in refused.value.message
    assert "second: no such system call" in refused.value.message


@pytest.mark.slow
def test_the_first_that_holds_is_taken() -> None:
    found = first_that_holds(
        {"missing": missing, "unable": Unable, "auto": lambda: sandbox_named("auto"), "none": NoSandbox}
    )
    assert found is sandbox_named("auto")


def test_a_task_can_name_one_of_those_that_exist() -> None:
    assert CodeConfig(sandbox="bubblewrap").sandbox == "bubblewrap"
    assert issubclass(InvalidTask, Exception)


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter as an ordinary user, who can read the tree and the interpreter and owns nothing."""
    closed = next((str(path) for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & 1), "/")
    return subprocess.run(  # noqa: S603 our own command
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", AS_NOBODY, "sh", sys.base_prefix, closed,  # noqa: S607 as any user has it
         os.path.realpath(sys.executable), *arguments],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *(path for path in sys.path if "site-packages" in path)]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )  # fmt: skip


INSTALLED = ("auto", *(name for name in MAKERS if name != "bubblewrap" or shutil.which("bwrap")))
BECOMES_NOBODY = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become nobody, and by setpriv"
)


@BECOMES_NOBODY
@pytest.mark.slow
def test_an_ordinary_user_has_every_sandbox_that_is_installed() -> None:
    done = as_nobody("-c", PROBE)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.endswith(" 2")] == [f"{name} 2" for name in INSTALLED], (
        done.stdout
    )


@BECOMES_NOBODY
@pytest.mark.slow
def test_what_an_ordinary_user_runs_does_not_get_out_either() -> None:
    """There the files and processes outside are the program's own user's. Each run takes one of the sandboxes."""
    name = random.SystemRandom().choice(INSTALLED[1:])
    done = as_nobody("-c", ATTACKED, name)
    assert done.returncode == 0, name + done.stdout + done.stderr
    assert "2 attacks, 0 got through" in done.stdout, name


def test_runs_share_nothing() -> None:
    source = (
        "import builtins, sys\ndef f():\n    builtins.kept = getattr(builtins, 'kept', 0) + 1\n    return builtins.kept"
    )
    assert [Program(source).call(sandbox_named("auto"), "f", [], SandboxLimits()) for _ in range(2)] == [1, 1]


KILLED = Ran("exit", BY_SIGNAL + 9, b"", b"")
SQUARE = Program("def f(x):\n    return x * x\n")


class Shaky(NoSandbox):
    """Kills the first drivers before they are ready, or ends them otherwise."""

    def __init__(self, *first: Ran) -> None:
        super().__init__()
        self.first = list(first)
        self.num_runs = 0

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        self.num_runs += 1
        return self.first.pop(0) if self.first else super().run(stdin, limits)


def test_a_driver_that_was_killed_before_it_was_ready_is_started_once_more() -> None:
    shaky = Shaky(KILLED)
    assert SQUARE.call(shaky, "f", [3], SandboxLimits()) == 9
    assert shaky.num_runs == 2
    with pytest.raises(SandboxBroken, match="the interpreter did not start"):
        SQUARE.call(Shaky(KILLED, KILLED), "f", [3], SandboxLimits())


@pytest.mark.parametrize(
    ("ended", "wanted"),
    [
        (Ran("exit", BY_SIGNAL + 9, b"+", b""), ProgramFailed),
        (Ran("deadline", BY_SIGNAL + 9, b"+", b""), ProgramFailed),
        (Ran("exit", 91, b"", b"refused"), SandboxBroken),
    ],
    ids=["a program that kills itself", "a program that hangs", "no filter"],
)
def test_what_ended_otherwise_is_not_repeated(ended: Ran, wanted: type[Exception]) -> None:
    shaky = Shaky(ended)
    with pytest.raises(wanted):
        SQUARE.call(shaky, "f", [3], SandboxLimits())
    assert shaky.num_runs == 1
