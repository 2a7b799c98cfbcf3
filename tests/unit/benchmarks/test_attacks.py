"""The areas of attacks that no other test runs whole: nothing gets through.

Programs that leave a sandbox are tried one by one in `tests/unit/rewards/sandbox/test_escapes.py`.
"""

from __future__ import annotations

import pytest

from tests.adversary.attacks import files, judge, sandbox, verifiers
from tests.adversary.attacks.attack import Attack

pytestmark = pytest.mark.slow


MEETING = [attack for attack in sandbox.attacks() if not attack.name.startswith("leave ")]


@pytest.mark.parametrize(
    "attack", [*files.attacks(), *judge.attacks(), *MEETING, *verifiers.attacks()], ids=lambda attack: attack.name
)
def test_nothing_gets_through(attack: Attack) -> None:
    assert attack.run() is None
