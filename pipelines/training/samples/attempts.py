"""Find the samples that kill the process (a segmentation fault, the system's out-of-memory killer): the keys of a step are durable first.

    died in a step of several samples   all are suspects, unless the step survives in a copy of the process: then something else ended
                                        the process. Each suspect is tried alone before it joins a step again, in a copy or, on
                                        an accelerator, recorded on disk first
    died with one sample alone          that sample killed two processes: condemned, `quarantined(step_error)`

So one sample kills the trainer at most twice, and on a CPU once. The batch as a whole may be the cause (memory): `num_deaths` counts
deaths in a row that nothing explains, and the token budget shrinks from the second on. Suspects and condemned samples stay in the
file until a checkpoint holds their fates.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import structlog
import torch

from weights.files import write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

FORK_SECONDS = 120.0
"""How long a copy of the process may take."""
_PAUSE = 0.005

log = structlog.get_logger()


class AttemptFile(msgspec.Struct):
    """The content of the file: sample keys, no text. `keys` of the current step are empty between steps."""

    epoch: int = 0
    step: int = 0
    keys: list[str] = []
    alone: str | None = None
    """The suspect that is being tried alone."""
    suspects: set[str] = set()
    condemned: set[str] = set()
    num_deaths: int = 0
    """In steps of several samples, explained by none of them, since the last such step that went through."""


class Attempts:
    """The attempt file of one trainer."""

    def __init__(self, path: Path) -> None:
        """Read the file that a previous process left if it died in a step."""
        self._path, self.known = path, _read(path)
        self.has_died = bool(self.known.keys)
        """True if the process before this one died in a step."""
        if self.has_died:
            self._learn_of_death()
            self._write()

    @property
    def remembered(self) -> set[str]:
        """Suspects, and condemned samples."""
        return self.known.condemned | self.known.suspects

    def begin(self, epoch: int, step: int, keys: Iterable[str], alone: str | None = None) -> None:
        """Record the keys of the step that comes next; `alone`: the suspect that it tries. Durable when this returns."""
        self.known.epoch, self.known.step, self.known.keys, self.known.alone = epoch, step, list(keys), alone
        self._write()

    def condemn(self, key: str) -> None:
        """Record a sample that killed a copy of the process. Durable when this returns."""
        log.error("a sample ends the process", key=key)
        self._condemn(key)
        self._write()

    def survived(self, *keys: str) -> None:
        """Clear suspects: the process survived them."""
        self.known.suspects.difference_update(keys)

    def end(self) -> None:
        """The step is over, with any result."""
        self.known.keys, self.known.alone = [], None
        if self.known.suspects or self.known.condemned:
            self._write()
        else:
            self._path.unlink(missing_ok=True)

    def saved(self, decided: Collection[str]) -> None:
        """Forget decided samples: a checkpoint holds their fates."""
        if not (done := {key for key in self.remembered if key in decided}):
            return
        self.known.condemned -= done
        self.known.suspects -= done
        self.end()

    def _learn_of_death(self) -> None:
        died = self.known
        if died.alone is not None:
            log.error("a sample ended the process twice", key=died.alone, epoch=died.epoch, step=died.step)
            self._condemn(died.alone)
        else:
            log.error("the process died in a step", epoch=died.epoch, step=died.step, num_samples=len(died.keys))
            died.suspects.update(died.keys)
            died.num_deaths += 1
        died.keys, died.alone = [], None

    def _condemn(self, key: str) -> None:
        self.known.condemned.add(key)
        self.known.suspects.discard(key)
        self.known.num_deaths = 0

    def _write(self) -> None:
        write_durably(self._path, [msgspec.json.encode(self.known)])


def _read(path: Path) -> AttemptFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=AttemptFile)
    except FileNotFoundError:
        return AttemptFile()
    except msgspec.MsgspecError as error:
        log.error("the file of the last step is unreadable: no sample is suspected", path=str(path), reason=str(error))  # noqa: TRY400 no fault of ours
        return AttemptFile()


def survives(action: Callable[[], object], seconds: float = FORK_SECONDS) -> bool | None:
    """True if a copy of this process survives `action`, exceptions included; None if it does not end in time.

    The copy exits silently: it flushes nothing, closes nothing, and has only the calling thread. CPU only: accelerators do not survive a
    fork.
    """
    child = os.fork()
    if child == 0:
        try:
            # A fork copies only the calling thread: torch would wait for worker threads that do not exist.
            torch.set_num_threads(1)
            action()
        finally:
            os._exit(0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        time.sleep(_PAUSE)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
