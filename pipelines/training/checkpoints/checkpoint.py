"""Checkpoints: atomic folders, verified before they are used, never a pickle.

    checkpoint-<epoch>-<serial>/   weights.safetensors   float32 master weights
                                   optimizer.safetensors AdamW moments by parameter name
                                   state.json            TrainerState without what it knows of single samples
                                   samples.mark          how many rows of samples.db it knows
                                   MANIFEST.json         written last: sizes and blake3 of the others
                                   Several ranks write weights and moments in pieces, with an index: see `pieces`.
    samples.db                     one file for all checkpoints, see `known_samples`

`begin` takes what must not change meanwhile; then `write` may run in another thread while steps go on. Serials only rise and are never
reused, not even those of refused folders. Deletion takes two phases (`CheckpointFence`), so that a trainer that was paused and
resumes cannot delete the checkpoint that its successor continues from.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from contracts.errors import NotFound, StaleWrite, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from contracts.files import read_small
from pipelines.training.checkpoints.checkpoint_names import (
    MANIFEST,
    MOMENTS,
    NOTHING,
    STATE,
    WEIGHTS,
    CheckpointManifest,
    Name,
    Written,
    names_in,
    parse_name,
    read_manifest,
    seal,
)
from pipelines.training.checkpoints.pieces import PIECE_SECONDS, LocalRows, files_of, gathered
from pipelines.training.checkpoints.plans import StateKept
from pipelines.training.checkpoints.tensor_files import TakenTensors, open_tensors, verify, write_pieces
from pipelines.training.known.known_samples import KnownSamples, SampleChanges, SampleFile
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.state import TrainerState
from weights.files import make_folder_durably, sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    import torch

    from pipelines.training.checkpoints.checkpoint_names import CheckpointFence
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.learning.masters import Masters
    from weights.tensors import Tensor

SAMPLES, MARK = "samples.db", "samples.mark"
_MOST_STATE_BYTES = 2**30
log = structlog.get_logger()


@dataclass
class PendingCheckpoint:
    """A checkpoint on its way to the disk. Steps may go on: what it took stays as it is, if they call `tensors.keep` before."""

    name: str
    """Its folder exists: the journal of those steps begins there."""
    manifest: CheckpointManifest
    """Without its files."""
    expired_before: float
    state: bytes
    samples: KnownSamples
    changes: SampleChanges
    tensors: TakenTensors
    held: Masters
    """Weights and moments, whose pieces other ranks write at the same time if these are rows."""
    same_as: str
    """A checkpoint with these very tensors, whose files get another name; NOTHING: there is none."""
    mark: int | None = None
    """Once it is durable: the mark of the samples that it knows."""
    is_linked: bool = False
    """Its tensors were in another checkpoint already and were not written again."""
    bits: Mapping[str, Tensor] | None = None
    """Once it is durable: those of its version, if they were asked for."""

    @property
    def is_cut(self) -> bool:
        """True if other ranks write pieces of it too."""
        return isinstance(self.held[0], LocalRows)


class RefusedCheckpoint(NamedTuple):
    """A checkpoint that did not verify, and why."""

    name: str
    reason: str


class CheckpointStore:
    """Checkpoints in one folder."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        fault: FaultPoint = no_fault,
        *,
        fence: CheckpointFence | None = None,
        piece_seconds: float = PIECE_SECONDS,
    ) -> None:
        """`keep`: how many of the newest stay, and of the newest versions. Without a `fence` the folder has a single user.

        `piece_seconds`: how long to wait for the pieces of other ranks.
        """
        self.folder, self._keep = folder, keep
        self._fault, self._fence, self._piece_seconds = fault, fence, piece_seconds
        self._last = 0
        make_folder_durably(folder)
        self._samples = SampleFile(folder / SAMPLES)

    def close(self) -> None:
        """Close the file of samples; the next call opens it again."""
        self._samples.close()

    def save(self, checkpoint: Checkpoint, keep_versions: Collection[int] = ()) -> str:
        """`begin`, `write` and `finish` while the caller waits; returns the name."""
        pending = self.begin(checkpoint)
        try:
            self.write(pending, keep_versions)
        finally:
            self.finish(pending)
        return pending.name

    def begin(self, checkpoint: Checkpoint, *, budget: float = 1.0, same_as: str = NOTHING) -> PendingCheckpoint:
        """Take what `write` needs, and make the folder. Then `write`, and `finish` whatever came of it.

        `checkpoint` may change afterwards; its tensors only after `tensors.keep`. `budget`: see `TensorSnapshot`. `same_as`: a
        checkpoint with the same tensors, if there is one: they are not written again.

        Raises Unavailable: the disk is full; nothing was taken.
        """
        state, held = checkpoint.state, (checkpoint.weights, checkpoint.optimizer)
        taken = (found.serial for text in names_in(self.folder) if (found := parse_name(text)) is not None)
        # Not that of a folder that was given up either: another rank may be writing into it still.
        self._last = max([self._last, *taken]) + 1
        name = Name(state.epoch, self._last).text
        make_folder_durably(self.folder / name)
        return PendingCheckpoint(
            name,
            CheckpointManifest(epoch=state.epoch, step=state.step, version=checkpoint.version, files={}),
            state.expired_before,
            state.to_json(),
            state.samples,
            state.samples.hand_over(),
            TakenTensors(files_of(held), budget),
            held,
            same_as,
        )

    def write(self, pending: PendingCheckpoint, keep_versions: Collection[int] = ()) -> None:
        """Write durably, then delete checkpoints and rows of samples that nothing needs. In any thread, one at a time.

        Raises Unavailable: the disk is full; older checkpoints are untouched. StaleWrite: another trainer removed the
        folder. LeaseLost: another trainer took over; the checkpoint is durable.
        """
        try:
            mark = self._write(self.folder / pending.name, pending)
        except Unavailable:
            self.give_up(pending)
            raise
        except FileNotFoundError as error:
            raise _removed(pending.name) from error
        finally:
            pending.tensors.abandon()
        pending.mark = mark
        self._prune(keep_versions)
        try:
            oldest = min(map(self._mark_of, names_in(self.folder)))
            self._samples.prune(oldest, pending.manifest.epoch, pending.expired_before)
        except Unavailable as error:
            log.warning("old rows of samples are not deleted yet", reason=error.message)

    def finish(self, pending: PendingCheckpoint) -> None:
        """Tell the samples whether they are durable now."""
        if pending.mark is None:
            pending.samples.not_written()
        else:
            pending.samples.written(self._samples, pending.mark)

    def give_up(self, pending: PendingCheckpoint) -> None:
        """Delete what is there: the partial checkpoint would keep the disk full, and a full disk stops users' signals."""
        shutil.rmtree(self.folder / pending.name, ignore_errors=True)

    def keep_state(self, state: TrainerState, journal: Journal) -> None:
        """Make the state durable beside weights that the journal leads to; not while a checkpoint is being written.

        Raises StaleWrite, LeaseLost: another trainer has replaced this one. Unavailable: the disk is full; what was
        durable still is.
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
        """The newest whole checkpoint of a published version. Raises WeightsRefused: none verifies."""
        for name in reversed(self.names()):
            if self._version_of(name) == version:
                with suppress(WeightsRefused):
                    return self.load(name)
        kept = ", ".join(str(number) for number in sorted(self.versions()))
        raise WeightsRefused(
            "no_checkpoint",
            f"version {version} has no intact checkpoint here; these versions have one: {kept}",
            version=version,
        )

    def load(self, name: str, *, with_samples: bool = True) -> Checkpoint:
        """Read and verify one checkpoint; without samples it knows no fates. Raises WeightsRefused: something is damaged."""
        manifest, folder = read_manifest(self.folder, name), self.folder / name
        for file, facts in manifest.files.items():
            verify(folder / file, facts)
        try:
            state = msgspec.json.decode(read_small(folder / STATE, _MOST_STATE_BYTES), type=TrainerState)
            if with_samples and MARK in manifest.files:
                state.use(self.samples_of(name, self._mark_of(name)))
            weights, moments = open_tensors(folder, WEIGHTS), open_tensors(folder, MOMENTS)
        except (OSError, NotFound, msgspec.MsgspecError) as error:
            raise WeightsRefused("unreadable", f"{name} has the right checksums but cannot be read: {error}") from error
        return Checkpoint(state, weights, moments, manifest.version, name)

    def bits_of(
        self, name: str, bits_in: Callable[[Mapping[str, torch.Tensor]], Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """The bits of the version whose checkpoint was just written. In any thread; `bits_in` is the learner's."""
        try:
            return bits_in(open_tensors(self.folder / name, WEIGHTS))
        except NotFound as error:
            raise _removed(name) from error

    def samples_of(self, name: str, mark: int) -> KnownSamples:
        """What is known of samples as of a mark. Raises WeightsRefused: the file of samples lacks them."""
        if (last := self._samples.last()) < mark:
            raise WeightsRefused(
                "samples_lost",
                f"{name} knows {mark} rows of {self._samples.path}, which has {last}: restore it from a backup",
            )
        return KnownSamples(self._samples, mark)

    def names(self) -> list[str]:
        """Valid checkpoints, the newest last."""
        names = names_in(self.folder)
        void = self._fence.void(names) if self._fence else ()
        return [name for name in names if name not in void]

    def versions(self) -> set[int]:
        """Published versions that have a checkpoint."""
        return {version for name in self.names() if (version := self._version_of(name)) is not None}

    def _write(self, folder: Path, pending: PendingCheckpoint) -> int:
        """Returns the mark of its samples."""
        self._fault("checkpoint: before samples")
        mark = pending.changes.commit(self._samples, pending.manifest.epoch)
        files = self._linked(folder, pending)
        pending.is_linked = bool(files)
        if not files:
            files = pending.tensors.write(folder, self._fault)
        for file, content in ((STATE, pending.state), (MARK, str(mark).encode())):
            self._fault(f"checkpoint: before {file}")
            files[file] = write_pieces(folder / file, [content])
        if not pending.is_linked:
            files |= gathered(folder, pending.held, self._piece_seconds, self._fault)
        self._fault(f"checkpoint: before {MANIFEST}")
        write_durably(folder / MANIFEST, [seal(msgspec.structs.replace(pending.manifest, files=files))])
        self._fault("checkpoint: durable")
        return mark

    def _linked(self, folder: Path, pending: PendingCheckpoint) -> dict[str, Written]:
        """The tensors of another checkpoint under further names; empty if that is not possible here."""
        if pending.same_as == NOTHING:
            return {}
        try:
            held = read_manifest(self.folder, pending.same_as).files
            facts = {file: found for file, found in held.items() if file not in {STATE, MARK}}
            for file in facts:
                self._fault(f"checkpoint: before {file}")
                (folder / file).hardlink_to(self.folder / pending.same_as / file)
        except (OSError, WeightsRefused) as error:
            if pending.is_cut:  # they took nothing, and their weights may have changed
                raise Unavailable(f"the pieces of {pending.same_as} cannot be linked: {error}") from error
            log.info("tensors are written again", same_as=pending.same_as, reason=str(error))
            for file in (WEIGHTS, MOMENTS):
                (folder / file).unlink(missing_ok=True)
            return {}
        sync_folder(folder)
        pending.tensors.abandon()
        return facts

    def _mark_of(self, name: str) -> int:
        """The mark of a checkpoint; 0 if it has none."""
        try:
            return int((self.folder / name / MARK).read_bytes())
        except (OSError, ValueError):
            return 0

    def _prune(self, keep_versions: Collection[int]) -> None:
        def unneeded(in_use: Collection[int]) -> set[str]:
            return set(names_in(self.folder)) - self._kept({*keep_versions, *in_use})

        try:
            names = self._fence.deletable(unneeded) if self._fence else sorted(unneeded(()))
            for name in names:
                self._fault("checkpoint: before forgetting")
                shutil.rmtree(self.folder / name, ignore_errors=True)
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
            return read_manifest(self.folder, name).version
        except WeightsRefused:
            return None


def _removed(name: str) -> StaleWrite:
    return StaleWrite(f"{name} was removed: another trainer uses this folder")
