"""Which replicas a home may use. Pure."""

from __future__ import annotations

from typing import Literal

from contracts.engines import EngineReplica
from engines.registry import KINDS


def misfit(
    replica: EngineReplica, run: str, base: str
) -> Literal["another_run", "another_base", "unknown_kind"] | None:
    """Why it may not answer requests of a home with this run and base; None if it may, or if its run and base are not known."""
    if replica.run and run and replica.run != run:
        return "another_run"
    if replica.base and base and replica.base != base:
        return "another_base"
    return None if replica.kind in KINDS else "unknown_kind"


def fitting(replica: EngineReplica, run: str, base: str) -> EngineReplica:
    """The replica as a home with this run and base may use it: one that does not fit serves nothing, and its status says why."""
    why = misfit(replica, run, base)
    return replica if why is None else replica._replace(status=why, slots={}, problems={})
