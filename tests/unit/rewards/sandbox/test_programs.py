"""Which runs are repeated: only those of which nothing of the program had run."""

from __future__ import annotations

import pytest

from rewards.sandbox.port import BY_SIGNAL, Ran, SandboxBroken, SandboxLimits
from rewards.sandbox.programs import Program, ProgramFailed
from tests.worlds.sandboxes import NoSandbox

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
