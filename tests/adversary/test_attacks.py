"""The areas of attacks that no other test runs whole: nothing gets through. What each tries stands in its module of `tests/adversary/attacks`.

Programs that leave a sandbox are tried one by one in `tests/unit/rewards/sandbox/test_escapes.py`.
"""

from __future__ import annotations

import pytest

from tests.adversary.attacks import files, floods, judge, receipts, sandbox, silence, verifiers, weights
from tests.adversary.attacks.attack import Attack

pytestmark = pytest.mark.slow
MEETING = [attack for attack in sandbox.attacks() if not attack.name.startswith("leave ")]
AREAS = (files, floods, judge, receipts, silence, verifiers, weights)


@pytest.mark.parametrize(
    "attack", [*MEETING, *(attack for area in AREAS for attack in area.attacks())], ids=lambda attack: attack.name
)
def test_nothing_gets_through(attack: Attack) -> None:
    assert attack.run() is None
