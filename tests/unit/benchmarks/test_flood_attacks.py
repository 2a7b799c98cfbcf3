"""No flood of signals about one answer gets through."""

from __future__ import annotations

import pytest

from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.floods import attacks


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_a_flood_is_refused(attack: Attack) -> None:
    assert attack.run() is None
