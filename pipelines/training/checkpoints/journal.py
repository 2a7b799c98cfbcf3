"""The journal: the plans since a checkpoint, each durable before its step. Waits for: the disk, once per step.

    checkpoint-000007-00000042/    weights after step k
      journal-000007               header, then  plan k+1, end k+1, plan k+2, end k+2, state, ...  of epoch 7
      journal-000008               header: "after record 5 of journal-000007", then what epoch 8 added

Weights now = weights of the checkpoint + every step of its journal. State now = the newest `StateKept` + the steps after it: so a
save of fates and positions needs no weights. While the next checkpoint is being written, records go to both folders (`start`, then
`settle`).

A file has one writer: the trainer of its epoch. Its header says which records of the epoch before it continues from, and is durable
before that trainer writes anything else; what a stopped twin adds later is not part of it. Each record carries a checksum over
itself and all records before it. A torn last record never began: no step was taken and nothing was told.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import InvalidSettings, StaleWrite, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from contracts.files import open_plain
from pipelines.training.checkpoints.checkpoint_names import journal_epochs, journal_name
from pipelines.training.checkpoints.plans import Ending, Journaled, JournalRecord, StateKept
from pipelines.training.samples.trial import Plan
from weights.files import full_disk_named, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA = 1
MOST_BYTES = 256 * 2**20
"""Of the records since one checkpoint; then weights must be saved before the next step."""
MOST_STEPS = 2_000
MOST_RECORD_BYTES = 2**30
"""Of one record: a plan holds its whole batch."""
MOST_READ_BYTES = 2 * MOST_RECORD_BYTES
"""No trainer writes more beside one checkpoint."""
NO_RECORDS = Journaled(())
_LENGTH, _DIGEST = 4, 16
_SEED = b"millrace journal"

log = structlog.get_logger()


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record of a file. Before its own records come `after_count` of `after_epoch`; epoch 0: the checkpoint itself."""

    schema: int = SCHEMA
    checkpoint: str
    epoch: int
    after_epoch: int = 0
    after_count: int = 0


class _Writer:
    """One file. `seconds`: of each step that a restart would take again. `earlier_bytes`: of the files that it continues from."""

    def __init__(self, path: Path, epoch: int, after: Journaled) -> None:
        self.path, self.num_bytes, self._digest = path, 0, _SEED
        self.seconds = [record.seconds for record in after.records if isinstance(record, Ending)]
        self.earlier_bytes = sum(other.stat().st_size for other in path.parent.glob("journal-*") if other != path)
        # The last plan without its end is taken again under this epoch.
        after_count = after.number - (after.unfinished is not None)
        header = JournalHeader(
            checkpoint=path.parent.name, epoch=epoch, after_epoch=after.epoch, after_count=after_count
        )
        # Content of users stands in it: only the owner may read it.
        with full_disk_named(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
            try:
                self.append([header], durably=True)
                sync_folder(path.parent)
            except BaseException:
                self.close()
                raise

    def append(self, records: Sequence[JournalHeader | JournalRecord], *, durably: bool) -> None:
        """Write records whole or not at all. Raises Unavailable if the disk is full."""
        digest, frames = self._digest, []
        for record in records:
            payload = msgspec.msgpack.encode(record)
            if len(payload) > MOST_RECORD_BYTES:
                raise InvalidSettings(
                    f"a step depends on {len(payload) >> 20} MiB, and the journal takes {MOST_RECORD_BYTES >> 20}: "
                    "set a smaller batch_size"
                )
            digest = _chained(digest, payload)
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
        self.num_bytes, self._digest = self.num_bytes + len(data), digest

    def close(self) -> None:
        os.close(self._file)


class Journal:
    """The journal of one trainer, in its thread. It is open while the weights in memory are a checkpoint plus its records."""

    def __init__(self, folder: Path, fault: FaultPoint = no_fault) -> None:
        """`folder`: of the checkpoints."""
        self._folder, self._fault = folder, fault
        self._writers: dict[str, _Writer] = {}
        """By checkpoint; the first has the longest way."""
        self._late: list[JournalRecord] = []

    @property
    def is_open(self) -> bool:
        """True if a restart would come to the weights in memory."""
        return bool(self._writers)

    @property
    def name(self) -> str:
        """The checkpoint that it follows: while another is written, the older one. Empty: none."""
        return next(iter(self._writers), "")

    @property
    def num_bytes(self) -> int:
        """Bytes that a restart would read."""
        return sum(writer.earlier_bytes + writer.num_bytes for writer in self._longest)

    @property
    def num_steps(self) -> int:
        """Steps that a restart would take again."""
        return sum(len(writer.seconds) for writer in self._longest)

    @property
    def seconds(self) -> float:
        """About how long a restart would need for them."""
        return sum(sum(writer.seconds) for writer in self._longest)

    @property
    def is_full(self) -> bool:
        """True if weights must be saved before the next step."""
        return self.num_bytes > MOST_BYTES or self.num_steps >= MOST_STEPS

    @property
    def _longest(self) -> list[_Writer]:
        return [*self._writers.values()][:1]

    def start(self, name: str, epoch: int, after: Journaled = NO_RECORDS) -> None:
        """From now on records also follow checkpoint `name`, and the records `after` it that a restart took again.

        It may be on its way to the disk, if it holds the weights as they are now. Raises Unavailable: the disk is full.
        StaleWrite: another trainer uses the folder.
        """
        try:
            self._writers[name] = _Writer(self._path(name, epoch), epoch, after)
        except FileNotFoundError as error:
            raise StaleWrite(f"{name} was removed: another trainer uses this folder") from error

    def settle(self, name: str) -> None:
        """Checkpoint `name` is durable: records follow it alone."""
        for other in self._writers.keys() - {name}:
            self.drop(other)
        self._late = []

    def drop(self, name: str) -> None:
        """Records no longer follow checkpoint `name`."""
        self._writers.pop(name).close()

    def leave(self) -> None:
        """The weights in memory are no longer a checkpoint plus its records: a rollback replaced them."""
        self.settle("")

    def begin(self, plan: Plan) -> None:
        """Fix what a step depends on, durably. Raises Unavailable: the disk or the journal is full; do not take the step."""
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
        for writer in self._writers.values():
            writer.seconds.append(ending.seconds)
        try:
            self._append(ending, durably=False)
        except Unavailable as error:
            self._late.append(ending)
            log.warning("the end of a step is written with the next record", reason=error.message)

    def keep(self, kept: StateKept) -> None:
        """Save the state without weights. Durable when this returns. Raises Unavailable: the disk is full."""
        self._fault("journal: before the state")
        self._append(kept, durably=True)
        self._fault("journal: state durable")

    def read(self, name: str, before: int) -> Journaled:
        """The records of checkpoint `name` by trainers of epochs below `before`, in order: those that the newest of them stands on.

        Raises WeightsRefused: `too_long`: no trainer wrote that much; or `newer_schema`.
        """
        paths = [*(self._folder / name).glob("journal-*")]
        if sum(path.stat().st_size for path in paths) > MOST_READ_BYTES:
            raise WeightsRefused("too_long", f"the journal of {name} has more than {MOST_READ_BYTES >> 20} MiB")
        ways = {0: Journaled([])}
        for epoch in journal_epochs(paths):
            header, own = _read(self._path(name, epoch)) if 0 < epoch < before else (None, [])
            if header is None or header.checkpoint != name or header.epoch != epoch:
                continue  # it never began
            earlier = ways.get(header.after_epoch)
            if earlier is None or earlier.number < header.after_count:
                log.error("the journal lacks records: steps after them are lost", epoch=epoch, checkpoint=name)
                if earlier is not None:
                    ways[epoch] = earlier
                continue
            num_kept = len(earlier.records) - earlier.number + header.after_count
            ways[epoch] = Journaled([*earlier.records[:num_kept], *own], epoch, len(own))
        return ways[max(ways)]

    def _append(self, record: JournalRecord, *, durably: bool) -> None:
        for writer in self._writers.values():
            writer.append([*self._late, record], durably=durably)
        self._late = []

    def _path(self, name: str, epoch: int) -> Path:
        return self._folder / name / journal_name(epoch)


def _read(path: Path) -> tuple[JournalHeader | None, list[JournalRecord]]:
    """The header and the records of a file, up to the first that is torn or damaged."""
    header: JournalHeader | None = None
    records: list[JournalRecord] = []
    digest, at = _SEED, 0
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            head = file.read(_LENGTH + _DIGEST)
            end = at + len(head) + int.from_bytes(head[:_LENGTH], "big")
            payload = file.read(max(min(end, size) - at - len(head), 0))
            digest = _chained(digest, payload)
            if end > size or head[_LENGTH:] != digest:
                facts = {"path": str(path), "at": at, "num_bytes": size - at}
                if end >= size:
                    log.warning("the last record of the journal is torn: its step had not begun", **facts)
                else:
                    log.error(
                        "the journal is damaged: its later steps are lost, and their samples pending again", **facts
                    )
                break
            at = end
            try:
                if header is None:
                    header = msgspec.msgpack.decode(payload, type=JournalHeader)
                else:
                    records.append(msgspec.msgpack.decode(payload, type=JournalRecord))
            except msgspec.MsgspecError as error:
                raise WeightsRefused(
                    "newer_schema",
                    f"{path} was written by another Millrace ({error}): start that release once and stop it, so that it "
                    "saves the weights",
                ) from error
    return header, records


def _chained(before: bytes, payload: bytes) -> bytes:
    return blake3(before + payload).digest(_DIGEST)
