"""Programs that a model could have written: they want out of their sandbox, or to meet the next run.

In: nothing. Out: what each sandbox that can be made here lets them do. Waits: for one short run after another.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from contracts.errors import MillraceError
from rewards.sandbox.choose import MAKERS
from rewards.sandbox.port import Sandbox, SandboxLimits
from rewards.sandbox.programs import Program, ProgramFailed
from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.cases.doors import DOORS, MEETINGS
from tests.adversary.attacks.cases.escapes import ESCAPES, Escape
from tests.worlds.sandboxes import open_world

_LIMITS = SandboxLimits(seconds=5.0)


def attacks() -> list[Attack]:
    """Two for each sandbox that can be made here."""
    found = []
    for name, make in MAKERS.items():
        try:
            sandbox = make()
        except MillraceError:
            continue  # what cannot be made runs nothing
        programs = {key: escape for key, escape in {**ESCAPES, **DOORS}.items() if escape.but != name}
        found += [
            Attack(f"leave {name}", _escaping(sandbox, programs), len(programs)),
            Attack(f"two runs meet in {name}", _meeting(sandbox), len(MEETINGS)),
        ]
    return found


def _escaping(sandbox: Sandbox, programs: dict[str, Escape]) -> Callable[[], str | None]:
    def run() -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            with open_world(Path(folder) / "world") as world:
                argument = world.as_argument()
                through = [name for name, escape in programs.items() if _succeeds(sandbox, escape, argument)]
                through += [f"it touched {what}" for what in world.touched()]
        return "; ".join(through) or None

    return run


def _meeting(sandbox: Sandbox) -> Callable[[], str | None]:
    def run() -> str | None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            argument = {"free": taken.getsockname()[1], "marker": f"millrace-{taken.getsockname()[1]}"}
        through = []
        with ThreadPoolExecutor(1) as pool:
            for name, (leaver, finder) in MEETINGS.items():
                left = pool.submit(_succeeds, sandbox, leaver, argument)
                found = _succeeds(sandbox, finder, argument)
                if left.result() and found:
                    through.append(name)
        return "; ".join(through) or None

    return run


def _succeeds(sandbox: Sandbox, escape: Escape, argument: dict[str, Any]) -> bool:
    try:
        return Program(escape.source).call(sandbox, "f", [argument], _LIMITS) is True
    except ProgramFailed:
        return False
