"""Checkpoints: atomic folders, verified before they are used, never a pickle.

In: weights, optimizer moments and state. Out: the same after a crash, or the newest older checkpoint that verifies. Waits for:
the disk. A checkpoint exists once its manifest is in place; every other file was synced before.

`begin` takes what must not change while it is written: the state as JSON, the changes of samples, and a `TensorSnapshot` of the tensors.
`write` may then run in another thread while steps go on. Tensors go to the disk in pieces, and are read one at a time.

    checkpoint-<epoch>-<serial>/   weights.safetensors   float32 master weights
                                   optimizer.safetensors AdamW moments by parameter name
                                   state.json            TrainerState without what it knows of single samples
                                   samples.mark          how many rows of samples.db it knows
                                   MANIFEST.json         written last: sizes and blake3 of the others
    samples.db                     one file for all checkpoints, see `samples`

Serials only rise and are never reused, not even those of refused folders. Deletion takes two phases (`CheckpointFence`), so that
a trainer that was paused and resumes cannot delete the checkpoint that its successor continues from.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import NotFound, StaleWrite, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from contracts.files import read_small
from pipelines.training.checkpoints.checkpoint_names import (
    MANIFEST,
    NOTHING,
    CheckpointManifest,
    Name,
    names_in,
    parse_name,
    read_manifest,
    seal,
)
from pipelines.training.checkpoints.plans import StateKept, without_samples
from pipelines.training.checkpoints.tensor_files import (
    TensorFile,
    TensorSnapshot,
    Written,
    header_of,
    verify,
    write_pieces,
)
from pipelines.training.known.known_samples import KnownSamples, SampleChanges, SampleFile
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.state import TrainerState
from weights.files import make_folder_durably, sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    import torch

    from pipelines.training.checkpoints.checkpoint_names import CheckpointFence
    from pipelines.training.checkpoints.journal import Journal
    from weights.tensors import Tensors

SAMPLES, MARK, STATE = "samples.db", "samples.mark", "state.json"
WEIGHTS, MOMENTS = "weights.safetensors", "optimizer.safetensors"
_MOST_STATE_BYTES = 2**30
log = structlog.get_logger()


class PendingCheckpoint(NamedTuple):
    """A checkpoint on its way to the disk. Steps may go on: nothing of it changes, if they call `snapshot.keep` before."""

    name: str
    """Its folder exists: the journal of those steps begins there."""
    epoch: int
    step: int
    version: int | None
    expired_before: float
    state: bytes
    samples: SampleChanges
    headers: Mapping[str, tuple[bytes, int]]
    """File to its header, and the number of bytes of its tensors in the snapshot."""
    snapshot: TensorSnapshot
    same_as: str
    """A checkpoint with these very tensors, whose files get another name; NOTHING: there is none."""


class WrittenCheckpoint(NamedTuple):
    """A durable checkpoint, and the mark of the samples that it knows."""

    name: str
    mark: int
    is_linked: bool
    """Its tensors were in another checkpoint already and were not written again."""


class RefusedCheckpoint(NamedTuple):
    """A checkpoint that did not verify, and why."""

    name: str
    reason: str


class CheckpointStore:
    """Checkpoints in one folder."""

    def __init__(
        self, folder: Path, keep: int, fault: FaultPoint = no_fault, *, fence: CheckpointFence | None = None
    ) -> None:
        """`fault` is called before each visible change.

        Args:
            folder: holds one policy's checkpoints.
            keep: the number of newest checkpoints that stay, and of newest versions.
            fault: see `contracts.faults`.
            fence: decides which checkpoints are valid and when one may be deleted. None: the folder has a single user.
        """
        self._folder = folder
        self._keep = keep
        self._fault = fault
        self._fence = fence
        make_folder_durably(folder)
        self._samples = SampleFile(folder / SAMPLES)

    def close(self) -> None:
        """Close the file of samples; the next call opens it again."""
        self._samples.close()

    def save(self, checkpoint: Checkpoint, keep_versions: Collection[int] = ()) -> str:
        """Write durably while the caller waits, then delete old checkpoints; returns the name. Raises as `write`."""
        pending = self.begin(checkpoint)
        try:
            written = self.write(pending)
        except BaseException:
            checkpoint.state.samples.not_written()
            raise
        self.finish(checkpoint.state, written)
        self.prune(pending, keep_versions)
        return written.name

    def begin(self, checkpoint: Checkpoint, *, budget: float = 1.0, same_as: str = NOTHING) -> PendingCheckpoint:
        """Take what `write` needs, and make the folder. Then `write`, and `finish` or `state.samples.not_written()`.

        Args:
            checkpoint: may change afterwards; its tensors only after `snapshot.keep`.
            budget: see `TensorSnapshot`.
            same_as: a checkpoint with the same tensors, if there is one: they are not written again.

        Raises:
            Unavailable: the disk is full; nothing was taken.
        """
        taken = (found.serial for text in names_in(self._folder) if (found := parse_name(text)) is not None)
        name = Name(checkpoint.state.epoch, max(taken, default=0) + 1).text
        make_folder_durably(self._folder / name)
        state, files = checkpoint.state, {WEIGHTS: checkpoint.weights, MOMENTS: checkpoint.optimizer}
        return PendingCheckpoint(
            name=name,
            epoch=state.epoch,
            step=state.step,
            version=checkpoint.version,
            expired_before=state.expired_before,
            state=msgspec.json.encode(state, enc_hook=without_samples),
            samples=state.samples.hand_over(),
            headers={file: header_of(tensors) for file, tensors in files.items()},
            snapshot=TensorSnapshot([each for tensors in files.values() for each in tensors.values()], budget),
            same_as=same_as,
        )

    def write(self, pending: PendingCheckpoint) -> WrittenCheckpoint:
        """Write durably. In any thread, one at a time.

        Raises:
            Unavailable: the disk is full; older checkpoints are untouched.
            StaleWrite: another trainer removed the folder.
        """
        name = pending.name
        try:
            mark, is_linked = self._write(self._folder / name, pending)
        except Unavailable:
            self.give_up(pending)
            raise
        except FileNotFoundError as error:
            raise StaleWrite(f"{name} was removed while it was written: another trainer uses this folder") from error
        finally:
            pending.snapshot.abandon()
        return WrittenCheckpoint(name, mark, is_linked)

    def give_up(self, pending: PendingCheckpoint) -> None:
        """Delete what is there: the partial checkpoint would keep the disk full, and a full disk stops users' signals."""
        shutil.rmtree(self._folder / pending.name, ignore_errors=True)

    def finish(self, state: TrainerState, written: WrittenCheckpoint) -> None:
        """The checkpoint that `begin` took from this state is durable."""
        state.samples.written(self._samples, written.mark)

    def prune(self, written: PendingCheckpoint, keep_versions: Collection[int] = ()) -> None:
        """Delete checkpoints and rows of samples that nothing needs, now that this checkpoint is durable.

        Raises:
            LeaseLost: another trainer took over.
        """
        self._prune(keep_versions)
        try:
            oldest = min(map(self._mark_of, names_in(self._folder)))
            self._samples.prune(oldest, written.epoch, written.expired_before)
        except Unavailable as error:
            log.warning("old rows of samples are not deleted yet", reason=error.message)

    def keep_state(self, state: TrainerState, journal: Journal) -> None:
        """Make the state durable beside weights that the journal leads to; not while a checkpoint is being written.

        Raises:
            StaleWrite, LeaseLost: another trainer has replaced this one.
            Unavailable: the disk is full; what was durable still is.
        """
        self._fault("checkpoint: before samples")
        changes = state.samples.hand_over()
        try:
            mark = changes.commit(self._samples, state.epoch)
        except BaseException:
            state.samples.not_written()
            raise
        state.samples.written(self._samples, mark)
        journal.keep(StateKept.of(state, mark))
        if self._fence is not None:
            self._fence.check()

    def load_newest(self) -> tuple[Checkpoint | None, list[RefusedCheckpoint]]:
        """The newest checkpoint that verifies, and the newer ones that were refused."""
        refused: list[RefusedCheckpoint] = []
        for name in reversed(self.names()):
            try:
                return self.load(name), refused
            except WeightsRefused as error:
                refused.append(RefusedCheckpoint(name, f"{error.code}: {error.message}"))
        return None, refused

    def load_version(self, version: int) -> Checkpoint:
        """The newest whole checkpoint of a published version.

        Raises:
            WeightsRefused: no checkpoint of this version verifies.
        """
        for name in reversed(self.names()):
            try:
                if read_manifest(self._folder, name).version == version:
                    return self.load(name)
            except WeightsRefused:
                continue
        kept = ", ".join(str(number) for number in sorted(self.versions()))
        raise WeightsRefused(
            "no_checkpoint",
            f"version {version} has no intact checkpoint here; these versions have one: {kept}",
            version=version,
        )

    def load(self, name: str, *, with_samples: bool = True) -> Checkpoint:
        """Read and verify one checkpoint. Without samples, the state knows no fates: enough to take steps again.

        Raises:
            WeightsRefused: something is missing, truncated or changed.
        """
        manifest = read_manifest(self._folder, name)
        for file, facts in manifest.files.items():
            verify(self._folder / name / file, Written(*facts))
        folder = self._folder / name
        try:
            state = msgspec.json.decode(read_small(folder / STATE, _MOST_STATE_BYTES), type=TrainerState)
            if with_samples and MARK in manifest.files:
                state.use(self.samples_of(name, self._mark_of(name)))
            weights, moments = TensorFile(folder / WEIGHTS), TensorFile(folder / MOMENTS)
        except (OSError, NotFound, msgspec.MsgspecError) as error:
            raise WeightsRefused("unreadable", f"{name} has the right checksums but cannot be read: {error}") from error
        return Checkpoint(state, weights, moments, manifest.version, name)

    def bits_of(self, name: str, bits_in: Callable[[Mapping[str, torch.Tensor]], Tensors]) -> Tensors:
        """The bits of the version whose checkpoint was just written. In any thread; `bits_in` is the learner's.

        Raises:
            StaleWrite: another trainer removed the folder.
        """
        try:
            return bits_in(TensorFile(self._folder / name / WEIGHTS))
        except NotFound as error:
            raise StaleWrite(f"{name} was removed: another trainer uses this folder") from error

    def names(self) -> list[str]:
        """Valid checkpoints, the newest last."""
        names = names_in(self._folder)
        void = self._fence.void(names) if self._fence else ()
        return [name for name in names if name not in void]

    def versions(self) -> set[int]:
        """Published versions that have a checkpoint."""
        return {version for name in self.names() if (version := self._version_of(name)) is not None}

    def _write(self, folder: Path, pending: PendingCheckpoint) -> tuple[int, bool]:
        """Returns the mark of its samples, and whether its tensors are those of another checkpoint."""
        self._fault("checkpoint: before samples")
        mark = pending.samples.commit(self._samples, pending.epoch)
        linked = self._linked(folder, pending)
        files = linked or self._streamed(folder, pending)
        for file, data in ((STATE, pending.state), (MARK, str(mark).encode())):
            self._fault(f"checkpoint: before {file}")
            write_durably(folder / file, [data])
            files[file] = Written(len(data), blake3(data).hexdigest())
        manifest = CheckpointManifest(epoch=pending.epoch, step=pending.step, version=pending.version, files={**files})
        self._fault(f"checkpoint: before {MANIFEST}")
        write_durably(folder / MANIFEST, [seal(manifest)])
        self._fault("checkpoint: durable")
        return mark, bool(linked)

    def _streamed(self, folder: Path, pending: PendingCheckpoint) -> dict[str, Written]:
        files = {}
        for file, (header, num_bytes) in pending.headers.items():
            self._fault(f"checkpoint: before {file}")
            files[file] = write_pieces(folder / file, chain([header], pending.snapshot.pieces(num_bytes)))
        return files

    def _linked(self, folder: Path, pending: PendingCheckpoint) -> dict[str, Written]:
        """The tensors of another checkpoint under further names; empty if that is not possible here."""
        if pending.same_as == NOTHING:
            return {}
        try:
            facts = read_manifest(self._folder, pending.same_as).files
            for file in pending.headers:
                self._fault(f"checkpoint: before {file}")
                (folder / file).hardlink_to(self._folder / pending.same_as / file)
        except (OSError, WeightsRefused) as error:
            log.info("tensors are written again", same_as=pending.same_as, reason=str(error))
            for file in pending.headers:
                (folder / file).unlink(missing_ok=True)
            return {}
        sync_folder(folder)
        pending.snapshot.abandon()
        return {file: Written(*facts[file]) for file in pending.headers}

    def samples_of(self, name: str, mark: int) -> KnownSamples:
        """What is known of samples as of a mark of checkpoint `name`.

        Raises:
            WeightsRefused: the file of samples lacks them.
        """
        if self._samples.last() < mark:
            raise WeightsRefused(
                "samples_lost",
                f"{name} knows {mark} rows of {self._samples.path}, which has {self._samples.last()}: restore it from a backup",
            )
        return KnownSamples(self._samples, mark)

    def _mark_of(self, name: str) -> int:
        """The mark of a checkpoint; 0 if it has none."""
        try:
            return int((self._folder / name / MARK).read_bytes())
        except (OSError, ValueError):
            return 0

    def _prune(self, keep_versions: Collection[int]) -> None:
        def unneeded(in_use: Collection[int]) -> set[str]:
            return set(names_in(self._folder)) - self._kept({*keep_versions, *in_use})

        try:
            names = self._fence.deletable(unneeded) if self._fence else sorted(unneeded(()))
            for name in names:
                self._fault("checkpoint: before forgetting")
                shutil.rmtree(self._folder / name, ignore_errors=True)
            if self._fence:
                self._fence.deleted(names)
        except Unavailable as error:
            log.warning("old checkpoints are not deleted yet", reason=error.message)

    def _kept(self, keep_versions: Collection[int]) -> set[str]:
        names = self.names()
        # Only the newest of each version: every restart saves its current version again.
        newest = {version: name for name in names if (version := self._version_of(name)) is not None}
        kept = {*names[-self._keep :], *sorted(newest.values())[-self._keep :]}
        return kept | {name for version, name in newest.items() if version in keep_versions}

    def _version_of(self, name: str) -> int | None:
        try:
            return read_manifest(self._folder, name).version
        except WeightsRefused:
            return None
