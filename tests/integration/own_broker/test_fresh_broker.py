"""A broker that has just been started for the first time."""

from __future__ import annotations

import pytest

from tests.integration.own_broker.conftest import FreshBroker

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_whoever_comes_first_finds_the_coordinator_of_its_group(fresh_broker: FreshBroker) -> None:
    assert fresh_broker.first_states == {"Dead"}, "it exists for nobody, and that is known"
