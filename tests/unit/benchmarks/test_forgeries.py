"""Every attack on the weight store fails; what each tries stands in `tests/adversary/attacks/weights.py`."""

import pytest

from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.weights import attacks


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
@pytest.mark.slow
def test_nothing_gets_through(attack: Attack) -> None:
    assert attack.run() is None
