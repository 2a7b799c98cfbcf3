"""The battery: programs that want out of each sandbox that works on this machine, and bombs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from rewards.sandbox.choose import MAKERS, sandbox_named
from rewards.sandbox.port import Sandbox, SandboxLimits
from rewards.sandbox.programs import Program, ProgramFailed
from tests.adversary.attacks.cases.doors import DOORS
from tests.adversary.attacks.cases.escapes import BOMBS, ESCAPES, Escape
from tests.worlds.sandboxes import NoSandbox, SandboxWorld, open_world

pytestmark = pytest.mark.slow

ALL = {**ESCAPES, **DOORS}
SHORT = SandboxLimits(seconds=1.0)


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Sandbox:
    """Of its name."""
    try:
        return sandbox_named(request.param)
    except Unavailable as error:
        pytest.skip(error.message)


OTHERS = pytest.mark.parametrize("other", list(MAKERS)[1:], indirect=True)
"""The usual one is nearly everywhere the first; of these a run takes a third of the programs."""


def third_of(programs: Iterable[str]) -> list[str]:
    names = sorted(programs)
    return random.SystemRandom().sample(names, len(names) // 3)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SandboxWorld]:
    # pytest's own folders are closed to others, and then an escape would fail for the wrong reason.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with open_world(tmp_path / "world") as opened:
        yield opened


def escaped(sandbox: Sandbox, attack: Escape, world: SandboxWorld) -> bool:
    argument = world.as_argument(is_bare=sandbox.name == "none")
    try:
        found = Program(attack.source).call(sandbox, "f", [argument], SandboxLimits(seconds=5.0))
    except ProgramFailed:
        return False
    assert isinstance(found, bool), found
    return found


def test_the_battery_is_as_large_as_it_claims() -> None:
    assert len(ALL) >= 90
    assert len(BOMBS) >= 20


@pytest.mark.parametrize("name", ALL)
def test_an_escape_is_contained(name: str, world: SandboxWorld) -> None:
    attack, usual = ALL[name], sandbox_named("auto")
    if attack.but == usual.name:
        pytest.skip(f"{usual.name} cannot stop it, as its documentation admits")
    assert not escaped(usual, attack, world)
    assert world.touched() == []


@OTHERS
def test_no_other_sandbox_has_a_way_out(other: Sandbox, world: SandboxWorld) -> None:
    for name in third_of(name for name, attack in ALL.items() if attack.but != other.name):
        assert not escaped(other, ALL[name], world), name
        assert world.touched() == [], name


@pytest.mark.parametrize("name", [name for name, attack in ALL.items() if attack.outside])
def test_the_same_attack_succeeds_where_there_are_no_walls(name: str, world: SandboxWorld) -> None:
    assert escaped(NoSandbox(), ALL[name], world)


def explode(sandbox: Sandbox, name: str, world: SandboxWorld) -> float:
    started = time.monotonic()
    with pytest.raises(ProgramFailed):
        Program(Escape(BOMBS[name]).source).call(sandbox, "f", [world.as_argument()], SHORT)
    return time.monotonic() - started


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_the_models_fault_and_leaves_nothing(name: str, world: SandboxWorld) -> None:
    chosen = sandbox_named("auto")
    before = world.children()
    assert explode(chosen, name, world) < SHORT.seconds + 1.0
    assert world.survivors() == []
    assert world.children() == before
    assert Program("def f(): return 1").call(chosen, "f", [], SandboxLimits()) == 1


@OTHERS
def test_a_bomb_goes_off_in_every_other_sandbox(other: Sandbox, world: SandboxWorld) -> None:
    for name in third_of(BOMBS):
        assert explode(other, name, world) < SHORT.seconds + 10.0, name
        assert world.survivors() == [], name
