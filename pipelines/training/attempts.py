"""What the trainer was doing when it died: the samples of a step are named durably before it is taken.

In: keys of a step. Out: after a hard death (a segmentation fault, the system's out-of-memory killer) who has to be tried
alone, and who never again. Waits: for the disk, twice per step.

    died in a step of several     they are suspects: each is tried alone before any step has it again, in a copy of the
                                  process, or (on an accelerator) named before it is tried
    died with one alone           it ended two processes: condemned, `quarantined(step_error)`

So a sample ends the trainer twice at most, and on a CPU once, whatever the others of the next batches do. The batch as a whole may be what kills it (memory): `num_deaths` counts the
deaths that no sample explains, and the token budget shrinks by it. What is known stays until a checkpoint holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import structlog

from weights.files import write_durably

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

log = structlog.get_logger()


class AttemptFile(msgspec.Struct):
    """The file: keys only, no content."""

    epoch: int = 0
    step: int = 0
    keys: list[str] = msgspec.field(default_factory=list)
    """Of the step that is being taken; empty between steps."""
    alone: str | None = None
    """The one of them that is being tried alone."""
    suspects: set[str] = msgspec.field(default_factory=set)
    condemned: set[str] = msgspec.field(default_factory=set)
    num_deaths: int = 0
    """In steps of several, unexplained."""


class Attempts:
    """One file of one trainer."""

    def __init__(self, path: Path) -> None:
        """Read what a trainer left that died in a step."""
        self._path = path
        self._now = _read(path)
        self.has_died = bool(self._now.keys)
        """True if the process before this one died in a step."""
        if self._now.keys:
            self._learn_of_death()
            self._write()

    @property
    def num_deaths(self) -> int:
        """Hard deaths in steps of several samples that no sample explains."""
        return self._now.num_deaths

    def is_condemned(self, key: str) -> bool:
        """True if it ended the process twice."""
        return key in self._now.condemned

    def suspects_among(self, keys: Iterable[str]) -> list[str]:
        """Those that have to be tried alone first."""
        return [key for key in keys if key in self._now.suspects]

    def begin(self, epoch: int, step: int, keys: Iterable[str]) -> None:
        """A step is about to be tried with these. Durable when this returns."""
        self._now.epoch, self._now.step, self._now.keys, self._now.alone = epoch, step, list(keys), None
        self._write()

    def try_alone(self, key: str) -> None:
        """One suspect is about to be tried. Durable when this returns."""
        self._now.keys, self._now.alone = [key], key
        self._write()

    def condemn(self, key: str) -> None:
        """It ended a copy of the process. Durable when this returns."""
        log.error("a sample ends the process", key=key)
        self._now.condemned.add(key)
        self._now.suspects.discard(key)
        self._now.num_deaths = 0
        self._write()

    def survived(self, key: str) -> None:
        """A suspect was tried, and the process lives."""
        self._now.suspects.discard(key)

    def end(self) -> None:
        """The step was decided, one way or another."""
        self._now.keys, self._now.alone = [], None
        if self._now.suspects or self._now.condemned:
            self._write()
        else:
            self._path.unlink(missing_ok=True)

    def saved(self, decided: Collection[str]) -> None:
        """A checkpoint holds the fates of these: nothing more has to be known of them."""
        known = self._now.condemned | self._now.suspects
        if not (done := {key for key in known if key in decided}):
            return
        self._now.condemned -= done
        self._now.suspects -= done
        self.end()

    def _learn_of_death(self) -> None:
        died = self._now
        if died.alone is not None:
            log.error("a sample ended the process twice", key=died.alone, epoch=died.epoch, step=died.step)
            died.condemned.add(died.alone)
            died.suspects.discard(died.alone)
            died.num_deaths = 0
        else:
            log.error("the process died in a step", epoch=died.epoch, step=died.step, num_samples=len(died.keys))
            died.suspects.update(died.keys)
            died.num_deaths += 1
        died.keys, died.alone = [], None

    def _write(self) -> None:
        write_durably(self._path, [msgspec.json.encode(self._now)])


def _read(path: Path) -> AttemptFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=AttemptFile)
    except FileNotFoundError:
        return AttemptFile()
    except msgspec.MsgspecError as error:
        log.error("who was in the last step is unreadable: nobody is suspected", path=str(path), reason=str(error))  # noqa: TRY400 no fault of ours
        return AttemptFile()
