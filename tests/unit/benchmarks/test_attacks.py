"""The areas of attacks that no other test runs whole: nothing gets through."""

from __future__ import annotations

import pytest

from benchmarks.attacks import judge, sandbox, verifiers
from benchmarks.attacks.attack import Attack

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "attack", [*judge.attacks(), *sandbox.attacks(), *verifiers.attacks()], ids=lambda attack: attack.name
)
def test_nothing_gets_through(attack: Attack) -> None:
    assert attack.run() is None
