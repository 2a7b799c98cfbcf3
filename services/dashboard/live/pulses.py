"""Since when each process is silent, by this machine's clock: the clocks of two machines may differ by more than a beat."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contracts.heartbeats import FRESH_SECONDS, ProcessBeat, in_words, states_of
from runtime.clocks import MOST_SECONDS

START_SECONDS = 30.0
"""A process that nobody has heard of is missed only after so long."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """How one process is. `state`: up, hangs or down; `says`: what is wrong, empty if it is up."""

    process: str
    replica: str
    state: str
    says: str


class Pulses:
    """Remembers when each row last changed. Used from one thread."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._heard: dict[tuple[str, str], tuple[float, float]] = {}

    def statuses(self, beats: Iterable[ProcessBeat], now: float) -> list[ProcessStatus]:
        """How every process is; the first look trusts clocks as far as processes may start with them."""
        self._began = now if self._began is None else self._began
        shifted, heard = [], {}
        for sign in beats:
            key = (sign.process, sign.replica)
            written_at, heard_at = self._heard.get(key, (None, now))
            if written_at is None:
                heard_at = sign.at if now - sign.at > FRESH_SECONDS + MOST_SECONDS else now
            elif written_at != sign.at:
                heard_at = now
            heard[key] = sign.at, heard_at
            shifted.append(sign._replace(at=heard_at, step_at=sign.step_at + heard_at - sign.at))
        self._heard = heard
        # Processes of one home start together, some of them slowly.
        is_starting = now - self._began < START_SECONDS
        return [
            ProcessStatus(one.process, one.replica, one.state, "" if one.state == "up" else in_words(one, now))
            for one in states_of(shifted, now)
            if one.since is not None or not is_starting
        ]
