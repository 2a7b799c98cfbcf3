"""The journal: what each step since a checkpoint depended on, durable before the step, so that a restart can take it again.

In: a planned step; then how it ended; or the state without the weights. Out: the same records, in order, after a crash. Waits for:
the disk, once per step. Pure otherwise.

    checkpoint-000007-00000042/    weights after step k
      journal-000007               header, then  plan k+1, end k+1, plan k+2, end k+2, state, ...  of epoch 7
      journal-000008               header: "after record 5 of journal-000007", then what epoch 8 added

Weights now = weights of the checkpoint + every step of its journal. State now = the newest `StateKept` + the steps after it: so a
save of fates and positions needs no weights. The folder of a checkpoint has the whole way from it, so a checkpoint and its journal
are deleted together, and nothing else is needed to repeat a step. While the next checkpoint is being written, records go to both
folders (`start`, then `settle`).

A file has one writer: the trainer of its epoch. Its header says which records of the epoch before it continues from, and is durable
before that trainer writes anything else; what a stopped twin adds later is not part of it. Each record carries a checksum over
itself and all records before it. A torn last record never began: no step was taken and nothing was told.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import StaleWrite, Unavailable
from contracts.faults import FaultPoint, no_fault
from pipelines.training.checkpoints.checkpoint_names import journal_epoch, journal_name
from pipelines.training.checkpoints.journal_records import Ending, JournalHeader, JournalRecord, Plan, StateKept
from weights.files import full_disk_named, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_BYTES = 256 * 2**20
"""Of the records since one checkpoint; then weights must be saved before the next step."""
MOST_STEPS = 2_000
_LENGTH, _DIGEST = 4, 16
_SEED = b"millrace journal"

log = structlog.get_logger()


class Place(NamedTuple):
    """After `number` records of the journal of `epoch`; epoch 0: at the checkpoint itself."""

    epoch: int = 0
    number: int = 0


class Journaled(NamedTuple):
    """The records since a checkpoint, and where they end."""

    records: list[JournalRecord]
    end: Place


class _Writer:
    """One file."""

    def __init__(self, path: Path, header: JournalHeader) -> None:
        self.path = path
        self.num_bytes = 0
        self._digest = _SEED
        # Content of users stands in it: only the owner may read it.
        with full_disk_named(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
            try:
                self.append([header], durably=True)
                sync_folder(path.parent)
            except BaseException:
                os.close(self._file)
                raise

    def append(self, records: list[JournalHeader | JournalRecord], *, durably: bool) -> None:
        """Write records whole or not at all. Raises Unavailable if the disk is full."""
        digest, frames = self._digest, []
        for record in records:
            payload = msgspec.msgpack.encode(record)
            digest = _digest(digest, payload)
            frames.append(len(payload).to_bytes(_LENGTH, "big") + digest + payload)
        data = memoryview(b"".join(frames))
        try:
            with full_disk_named(self.path):
                written = 0
                while written < len(data):
                    written += os.pwrite(self._file, data[written:], self.num_bytes + written)
                if durably:
                    os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, self.num_bytes)
            raise
        self.num_bytes += len(data)
        self._digest = digest

    def close(self) -> None:
        os.close(self._file)


class Journal:
    """The journal of one trainer, in its thread. It is open while the weights in memory are a checkpoint plus its records."""

    def __init__(self, folder: Path, fault: FaultPoint = no_fault) -> None:
        """`folder`: of the checkpoints."""
        self._folder = folder
        self._fault = fault
        self._writers: dict[str, _Writer] = {}
        self._late: list[JournalRecord] = []
        self._earlier_bytes = 0
        self._since: dict[str, list[float]] = {}

    @property
    def is_open(self) -> bool:
        """True if a restart would come to the weights in memory."""
        return bool(self._writers)

    @property
    def name(self) -> str:
        """The checkpoint that it follows: while another is written, the older one."""
        return next(iter(self._writers))

    @property
    def num_bytes(self) -> int:
        """Bytes that a restart would read."""
        return self._earlier_bytes + max((writer.num_bytes for writer in self._writers.values()), default=0)

    @property
    def num_steps(self) -> int:
        """Steps that a restart would take again."""
        return max(map(len, self._since.values()), default=0)

    @property
    def seconds(self) -> float:
        """About how long a restart would need for them."""
        return max(map(sum, self._since.values()), default=0.0)

    @property
    def is_full(self) -> bool:
        """True if weights must be saved before the next step."""
        return self.num_bytes > MOST_BYTES or self.num_steps >= MOST_STEPS

    def resume(self, name: str, epoch: int, found: Journaled, records: Sequence[JournalRecord]) -> None:
        """Go on after the records of checkpoint `name` that a restart took again, under a new epoch.

        Raises:
            Unavailable: the disk is full.
        """
        self.leave()
        self._writers[name] = self._writer(name, epoch, found.end)
        self._earlier_bytes = sum(path.stat().st_size for path in self._files(name) if path != self._path(name, epoch))
        self._since[name] = [record.seconds for record in records if isinstance(record, Ending)]

    def start(self, name: str, epoch: int) -> None:
        """From now on records also follow checkpoint `name`, which is being written and holds the weights as they are now.

        Raises:
            Unavailable: the disk is full.
        """
        self._writers[name] = self._writer(name, epoch, Place())
        self._since[name] = []

    def settle(self, name: str) -> None:
        """Checkpoint `name` is durable: records follow it alone."""
        for other in [*self._writers]:
            if other != name:
                self.drop(other)
        self._earlier_bytes, self._late = 0, []

    def drop(self, name: str) -> None:
        """Records no longer follow checkpoint `name`."""
        self._writers.pop(name).close()
        self._since.pop(name, None)

    def leave(self) -> None:
        """The weights in memory are no longer a checkpoint plus its records: a rollback replaced them."""
        for name in [*self._writers]:
            self.drop(name)
        self._earlier_bytes, self._late = 0, []

    def begin(self, plan: Plan) -> None:
        """Fix what a step depends on. Durable when this returns; the step must not be taken if it raises.

        Raises:
            Unavailable: the disk is full, or the journal is; nothing was changed.
        """
        if not self._writers:
            return
        if self.is_full:
            raise Unavailable(
                f"the journal has {self.num_steps} steps ({self.num_bytes / 2**20:.0f} MiB) since the last weights were saved, "
                "as many as it may: no step is taken until they are saved; see why in the lines before"
            )
        self._fault("journal: before the plan")
        self._append(plan, durably=True)
        self._fault("journal: plan durable")

    def end(self, ending: Ending) -> None:
        """How the step ended. It is durable with the next record: a step without its end is taken again, with the same result."""
        if not self._writers:
            return
        for times in self._since.values():
            times.append(ending.seconds)
        try:
            self._append(ending, durably=False)
        except Unavailable as error:
            self._late.append(ending)
            log.warning("the end of a step is written with the next record", reason=error.message)

    def keep(self, kept: StateKept) -> None:
        """Save the state without weights. Durable when this returns.

        Raises:
            Unavailable: the disk is full.
        """
        self._fault("journal: before the state")
        self._append(kept, durably=True)
        self._fault("journal: state durable")

    def read(self, name: str, before: int) -> Journaled:
        """The records of checkpoint `name` by trainers of epochs below `before`, in order."""
        epochs = sorted(epoch for path in self._files(name) if (epoch := journal_epoch(path.name)) is not None)
        for epoch in reversed([epoch for epoch in epochs if epoch < before]):
            if (found := self._chain(name, epoch)) is not None:
                return found
        return Journaled([], Place())

    def _chain(self, name: str, epoch: int) -> Journaled | None:
        """The records up to the end of one epoch; None if its file has no header, so that it never began."""
        path = self._path(name, epoch)
        header, own = _read(path)
        if header is None or header.checkpoint != name or header.epoch != epoch:
            return None
        if not header.after_epoch:
            return Journaled(own, Place(epoch, len(own)))
        before = self._chain(name, header.after_epoch) if header.after_epoch < epoch else None
        earlier = [] if before is None else before.records
        of_that_epoch = 0 if before is None else before.end.number
        if before is None or of_that_epoch < header.after_count:
            log.error("the journal lacks records: steps after them are lost", path=str(path), checkpoint=name)
            return before
        kept = earlier[: len(earlier) - of_that_epoch + header.after_count]
        return Journaled([*kept, *own], Place(epoch, len(own)))

    def _append(self, record: JournalRecord, *, durably: bool) -> None:
        for writer in self._writers.values():
            writer.append([*self._late, record], durably=durably)
        self._late = []

    def _writer(self, name: str, epoch: int, after: Place) -> _Writer:
        header = JournalHeader(checkpoint=name, epoch=epoch, after_epoch=after.epoch, after_count=after.number)
        try:
            return _Writer(self._path(name, epoch), header)
        except FileNotFoundError as error:
            raise StaleWrite(f"{name} was removed: another trainer uses this folder") from error

    def _path(self, name: str, epoch: int) -> Path:
        return self._folder / name / journal_name(epoch)

    def _files(self, name: str) -> list[Path]:
        return sorted((self._folder / name).glob("journal-*"))


def _read(path: Path) -> tuple[JournalHeader | None, list[JournalRecord]]:
    """The header and the records of a file, up to the first that is torn or damaged."""
    data = path.read_bytes()
    header: JournalHeader | None = None
    records: list[JournalRecord] = []
    digest, at = _SEED, 0
    while at < len(data):
        start = at + _LENGTH + _DIGEST
        end = start + int.from_bytes(data[at : at + _LENGTH], "big")
        expected = _digest(digest, data[start:end])
        if end > len(data) or data[at + _LENGTH : start] != expected:
            is_torn = end >= len(data)
            tell = log.warning if is_torn else log.error
            tell(
                "the last record of the journal is torn: its step had not begun"
                if is_torn
                else "the journal is damaged: its later steps are lost, and their samples pending again",
                path=str(path),
                at=at,
                num_bytes=len(data) - at,
            )
            break
        digest, at = expected, end
        if header is None:
            header = msgspec.msgpack.decode(data[start:end], type=JournalHeader)
        else:
            records.append(msgspec.msgpack.decode(data[start:end], type=JournalRecord))
    return header, records


def _digest(before: bytes, payload: bytes) -> bytes:
    return blake3(before + payload).digest(_DIGEST)
