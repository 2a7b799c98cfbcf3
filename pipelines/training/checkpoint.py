"""Checkpoints: atomic folders, verified before they are used, never a pickle.

In: weights, optimizer moments and state. Out: the same after a crash, or the newest older checkpoint that verifies. Waits for:
the disk. A checkpoint exists once its manifest is in place; every other file was synced before.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import safetensors.torch
import structlog
from blake3 import blake3
from safetensors import SafetensorError

from contracts.errors import StaleWrite, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from pipelines.training.checkpoint_names import (
    MANIFEST,
    NOTHING,
    CheckpointManifest,
    Name,
    names_in,
    parse_name,
    read_manifest,
    seal,
)
from pipelines.training.samples import KnownSamples, SampleFile, SampleMapping
from pipelines.training.state import TrainerState
from weights.files import make_folder_durably, write_durably

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import torch

    from pipelines.training.fence import CheckpointFence

SAMPLES, MARK = "samples.db", "samples.mark"
log = structlog.get_logger()


@dataclass(frozen=True)
class Checkpoint:
    """Everything the trainer knows at one moment. `version` is set if these weights are a published version."""

    state: TrainerState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    version: int | None = None
    name: str = NOTHING
    """The folder it was loaded from."""


@dataclass(frozen=True)
class RefusedCheckpoint:
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

    def save(self, checkpoint: Checkpoint, keep_versions: Collection[int] = ()) -> str:
        """Write durably, then delete old checkpoints; returns the name.

        Raises:
            Unavailable: the disk is full; older checkpoints are untouched.
        """
        taken = (found.serial for text in names_in(self._folder) if (found := parse_name(text)) is not None)
        name = Name(checkpoint.state.epoch, max(taken, default=0) + 1).text
        try:
            self._write(self._folder / name, checkpoint)
        except Unavailable:
            # The partial checkpoint would keep the disk full, and a full disk stops users' signals.
            shutil.rmtree(self._folder / name, ignore_errors=True)
            raise
        except FileNotFoundError as error:
            raise StaleWrite(f"{name} was removed while it was written: another trainer uses this folder") from error
        self._prune(keep_versions)
        self._samples.prune(
            min(map(self._mark_of, names_in(self._folder))), checkpoint.state.epoch, checkpoint.state.expired_before
        )
        return name

    def load_newest(self) -> tuple[Checkpoint | None, list[RefusedCheckpoint]]:
        """The newest checkpoint that verifies, and the newer ones that were refused."""
        refused: list[RefusedCheckpoint] = []
        for name in reversed(self._names()):
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
        for name in reversed(self._names()):
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

    def load(self, name: str) -> Checkpoint:
        """Read and verify one checkpoint.

        Raises:
            WeightsRefused: something is missing, truncated or changed.
        """
        manifest = read_manifest(self._folder, name)
        content = {file: self._verified(name, file, *facts) for file, facts in manifest.files.items()}
        try:
            state = msgspec.json.decode(content["state.json"], type=TrainerState)
            if MARK in content:
                state.use(self._samples_of(name, int(content[MARK])))
            return Checkpoint(
                state=state,
                weights=safetensors.torch.load(content["weights.safetensors"]),
                optimizer=safetensors.torch.load(content["optimizer.safetensors"]),
                version=manifest.version,
                name=name,
            )
        except (KeyError, ValueError, msgspec.MsgspecError, SafetensorError) as error:
            raise WeightsRefused("unreadable", f"{name} has the right checksums but cannot be read: {error}") from error

    def versions(self) -> set[int]:
        """Published versions that have a checkpoint."""
        return {version for name in self._names() if (version := self._version_of(name)) is not None}

    def _write(self, folder: Path, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self._fault("checkpoint: before samples")
        mark = state.samples.commit(self._samples, state.epoch)
        content = {
            "weights.safetensors": safetensors.torch.save(checkpoint.weights),
            "optimizer.safetensors": safetensors.torch.save(checkpoint.optimizer),
            "state.json": msgspec.json.encode(state, enc_hook=_without_samples),
            MARK: str(mark).encode(),
        }
        files = {file: (len(data), blake3(data).hexdigest()) for file, data in content.items()}
        manifest = CheckpointManifest(epoch=state.epoch, step=state.step, version=checkpoint.version, files=files)
        make_folder_durably(folder)
        for file, data in {**content, MANIFEST: seal(manifest)}.items():
            self._fault(f"checkpoint: before {file}")
            write_durably(folder / file, [data])
        self._fault("checkpoint: durable")

    def _samples_of(self, name: str, mark: int) -> KnownSamples:
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

    def _verified(self, name: str, file: str, size: int, digest: str) -> bytes:
        try:
            data = (self._folder / name / file).read_bytes()
        except FileNotFoundError:
            raise WeightsRefused("missing_file", f"{name} lacks {file}") from None
        if len(data) != size:
            raise WeightsRefused("truncated", f"{file} of {name} has {len(data)} bytes, not {size}")
        if blake3(data).hexdigest() != digest:
            raise WeightsRefused("payload_hash", f"{file} of {name} has another checksum than its manifest says")
        return data

    def _prune(self, keep_versions: Collection[int]) -> None:
        def unneeded(in_use: Collection[int]) -> set[str]:
            return set(names_in(self._folder)) - self._kept({*keep_versions, *in_use})

        try:
            names = self._fence.deletable(unneeded) if self._fence else sorted(unneeded(()))
        except Unavailable as error:
            log.warning("old checkpoints are not deleted yet", reason=error.message)
            return
        for name in names:
            self._fault("checkpoint: before forgetting")
            shutil.rmtree(self._folder / name, ignore_errors=True)
        if self._fence:
            self._fence.deleted(names)

    def _kept(self, keep_versions: Collection[int]) -> set[str]:
        names = self._names()
        # Only the newest of each version: every restart saves its current version again.
        newest = {version: name for name in names if (version := self._version_of(name)) is not None}
        kept = {*names[-self._keep :], *sorted(newest.values())[-self._keep :]}
        return kept | {name for version, name in newest.items() if version in keep_versions}

    def _version_of(self, name: str) -> int | None:
        try:
            return read_manifest(self._folder, name).version
        except WeightsRefused:
            return None

    def _names(self) -> list[str]:
        names = names_in(self._folder)
        void = self._fence.void(names) if self._fence else ()
        return [name for name in names if name not in void]


def _without_samples(value: Any) -> dict[str, Any]:
    """What is known of single samples is in a file of its own."""
    if isinstance(value, SampleMapping):
        return {}
    raise TypeError(f"{type(value).__name__} has no place in a checkpoint")
