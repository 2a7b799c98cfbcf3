"""Users first: where users and the trainer share a device, each micro-batch waits until no user waits.

    users wait? ──▶ wait, but at most 19 times as long as the micro-batch before took ──▶ micro-batch ──▶ users wait? ...

So a user waits for one micro-batch at most, and one as long as the latency budget is what is given here. Where users never pause, the trainer
keeps a twentieth of the time: then a long answer takes a twentieth longer. Only micro-batches wait: the optimizer's step does not. Waiting
changes no number. Waits for: the device, and the users.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from runtime.operations import step_done

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from pipelines.training.learning.stages import Stages

LEAST_SHARE = 0.05
"""Of the time, for the trainer, where users never pause."""
_LONGEST_SECONDS = 60.0
"""Of a wait, also where the micro-batch before had to compile first."""
_LOOK_SECONDS = 0.002
Item = TypeVar("Item")


class UsersFirst:
    """What a trainee asks. One per trainer, in its thread."""

    def __init__(
        self,
        num_waiting: Callable[[], int],
        stop: threading.Event,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        computing: Callable[[], float] | None = None,
    ) -> None:
        """`num_waiting`: users, now. `stop`: nothing is waited for any more. `computing`: the clock of micro-batches."""
        self._num_waiting, self._stop, self._device, self._clock = num_waiting, stop, device, clock
        # On a CPU this thread's own time, which is the same however busy the machine is.
        self._computing = computing or (time.thread_time if device.type == "cpu" else clock)
        self.seconds = 0.0
        """Of the last micro-batch."""

    def wait(self) -> None:
        """Wait while users wait; see the module for how long."""
        end = self._clock() + min(self.seconds * (1 / LEAST_SHARE - 1), _LONGEST_SECONDS)
        while self._num_waiting() and self._clock() < end and not self._stop.wait(_LOOK_SECONDS):
            step_done()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The block of a micro-batch. It ends with the device: work that the host has only queued would compute while users wait."""
        began = self._computing()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds = self._computing() - began


def in_turn(batches: Iterable[Item], users: UsersFirst | None, stages: Stages) -> Iterator[Item]:
    """Micro-batches one after the other: users, if there are any, come before each."""
    for batch in batches:
        if users is None:
            yield batch
            continue
        with stages.stage("users"):
            users.wait()
        with users.turn():
            yield batch
