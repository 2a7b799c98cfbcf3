from __future__ import annotations

import pytest

from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.silence import attacks


@pytest.mark.slow
@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_nothing_is_earned_by_silence(attack: Attack) -> None:
    assert attack.run() is None
