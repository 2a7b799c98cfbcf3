"""The sample ratio: do as many units of each arm reach us as the draw gives it? Pure."""

from __future__ import annotations

from contracts.arms import control_fraction


def expected_share(canary_share: float, control_ratio: float) -> float:
    """The part of the compared units that the draw gives to the canary."""
    controls = (1.0 - canary_share) * control_fraction(canary_share, control_ratio)
    return canary_share / (canary_share + controls)
