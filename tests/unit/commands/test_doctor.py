from __future__ import annotations

from pathlib import Path

from commands.doctor import examine, sandbox_of
from contracts.errors import Unavailable
from rewards.sandbox.choose import sandbox_named
from rewards.sandbox.port import Sandbox
from tests.unit.rewards.sandbox.worlds import NoSandbox


def missing() -> Sandbox:
    raise Unavailable("bwrap is not installed; apt install bubblewrap")


def test_the_sandboxes_that_hold_here_are_named(tmp_path: Path) -> None:
    [found] = [found for found in examine(tmp_path) if found.name == "sandbox"]
    assert (found.good, found.needed) == (True, False)
    assert found.says.startswith(sandbox_named("auto").name)


def test_of_those_that_do_not_hold_it_is_said_why() -> None:
    found = sandbox_of({"bubblewrap": missing, "bare": NoSandbox, "auto": lambda: sandbox_named("auto")})
    assert (found.good, found.needed) == (True, False)
    assert found.says.startswith(
        "auto; not bubblewrap: bwrap is not installed; apt install bubblewrap; bare: it does not"
    )
    assert "reading files" in found.says


def test_where_none_holds_it_is_said_how_to_get_one() -> None:
    found = sandbox_of({"bubblewrap": missing})
    assert (found.good, found.needed) == (False, False)
    assert "tasks that run code are refused; get Linux 6.12 or newer, or `apt install bubblewrap`" in found.says
    assert "bwrap is not installed" in found.says
