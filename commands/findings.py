"""What `millrace doctor` found out."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """The result of one check. `needed`: Millrace cannot run without it."""

    name: str
    good: bool
    needed: bool
    says: str
