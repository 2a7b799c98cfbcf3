"""Folders of this checkout that benchmarks use."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "reservations"
BASE = EXAMPLE / "base"
"""The demo's base policy."""
