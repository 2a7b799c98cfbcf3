"""Chooses a sandbox that works on this machine. A probe program tries to escape from each, and a sandbox with an escape is not used."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from contracts.errors import MillraceError, Unavailable
from rewards.sandbox.command import bubblewrap_sandbox, namespaces_sandbox
from rewards.sandbox.port import Sandbox, SandboxLimits
from rewards.sandbox.programs import Program, ProgramFailed

_LIMITS = SandboxLimits(seconds=10.0)
_STAY_SECONDS = 0.3
"""How long two runs of the probe search for each other."""
_PROBE = Path(__file__).parent / "probe.py"

Maker = Callable[[], Sandbox]


def _sandlock() -> Sandbox:
    from rewards.sandbox.on_sandlock import SandlockSandbox  # noqa: PLC0415 its library may be missing

    return SandlockSandbox()


MAKERS: Mapping[str, Maker] = MappingProxyType(
    {"sandlock": _sandlock, "bubblewrap": bubblewrap_sandbox, "namespaces": namespaces_sandbox}
)
"""In order of preference."""


@functools.cache
def sandbox_named(name: str) -> Sandbox:
    """The sandbox of that name, or with "auto" the first without an escape. Probed once per process. Raises Unavailable if none works."""
    return first_that_holds(MAKERS if name == "auto" else {name: MAKERS[name]})


def first_that_holds(makers: Mapping[str, Maker]) -> Sandbox:
    """The first sandbox that can be made and that the probe cannot escape. Raises Unavailable."""
    refused = []
    for name, make in makers.items():
        found = sandbox_or_problem(make)
        if not isinstance(found, str):
            return found
        refused.append(f"{name}: {found}")
    raise Unavailable(f"no sandbox works on this machine, and code never runs without one: {'; '.join(refused)}")


def sandbox_or_problem(make: Maker) -> Sandbox | str:
    """The sandbox if it has no escape, else what is wrong with it. A process probes a working sandbox only once."""
    try:
        return _admitted(make)
    except (MillraceError, ProgramFailed) as error:
        return str(error)


@functools.cache
def _admitted(make: Maker) -> Sandbox:
    sandbox = make()
    if escapes := ways_out(sandbox):
        raise Unavailable(f"it does not keep a program from {', '.join(escapes)}")
    return sandbox


def ways_out(sandbox: Sandbox) -> Sequence[str]:
    """Forbidden actions that the probe could do, alone or together with a second run. Raises SandboxBroken, ProgramFailed."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)
        Path(folder).chmod(0o777)
        port = listener.getsockname()[1]
        found = _asked(sandbox, "ways_out", [str(secret), folder, port, os.getpid(), _LIMITS.processes])
    return [*found, *(f"meeting another by {place}" for place in _meetings(sandbox))]


def visible_files(sandbox: Sandbox) -> Sequence[str]:
    """Files outside whose existence a program can see. Raises SandboxBroken, ProgramFailed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        secret = Path(folder) / "secret"
        secret.touch()
        there = [path for path in (str(secret), "/etc/shadow", f"/proc/{os.getpid()}") if os.path.lexists(path)]
        return _asked(sandbox, "shows", [there])


def described(sandbox: Sandbox) -> str:
    """The sandbox's name, and what it cannot hide, if anything. Raises SandboxBroken, ProgramFailed."""
    if not visible_files(sandbox):
        return sandbox.name
    return f"{sandbox.name} (it cannot hide which files and processes exist, and the size of files)"


def _meetings(sandbox: Sandbox) -> Sequence[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(_asked, sandbox, "leave", [port, _STAY_SECONDS])
        found = _asked(sandbox, "find", [port, _STAY_SECONDS * 0.8])
        return [place for place in found if place in left.result()]


def _asked(sandbox: Sandbox, function: str, arguments: Sequence[object]) -> Sequence[str]:
    found = Program(_PROBE.read_text()).call(sandbox, function, arguments, _LIMITS)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ProgramFailed(f"the probe answered {found!r}")
    return found
