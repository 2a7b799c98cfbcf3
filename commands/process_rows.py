"""The processes of a home, as `doctor` reports them: which are up, hang or are down. In: their signs of life. Out: findings."""

from __future__ import annotations

import time
from collections.abc import Iterator

from commands.findings import Finding
from contracts import heartbeats
from contracts.errors import Unavailable
from runtime.settings import Settings


def process_findings(settings: Settings) -> Iterator[Finding]:
    """One finding for each process that is not up, else one for all; none in a home that never ran."""
    if settings.database_url is None and not (settings.home / "millrace.db").exists():
        return
    now = time.time()
    try:
        with settings.snapshot() as connection:
            states = heartbeats.states_of(heartbeats.read(connection, settings.policy), now)
    except Unavailable as error:
        yield Finding("processes", False, False, error.message)
        return
    silent = [state for state in states if state.state != "up"]
    for state in silent:
        yield Finding("process", False, False, heartbeats.in_words(state, now))
    if states and not silent:
        names = ", ".join(sorted({state.process for state in states}))
        yield Finding("processes", True, False, f"{names}: all up")
